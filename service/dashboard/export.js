/** What is seen, as a file: only what all has come of, made from the one value that it is drawn from. */

import { themeColours } from './colours.js';
import { contextOf, html } from './html.js';
import { CanvasSurface, SvgSurface } from './surface.js';

const MARGIN = 24;
const HEADING = 40;
const MOST_PIXELS = 16_000_000;

/**
 * A drawing: either `draw`, or `parts` with places and titles of their own.
 *
 * @typedef {(surface: import('./surface.js').Surface, colours: import('./colours.js').Theme) => void} Draw
 * @typedef {{width: number, height: number, draw?: Draw, parts?: Part[]}} Scene
 * @typedef {Scene & {x: number, y: number, title?: string}} Part
 */

const MOST_TITLE = 160;

/** @typedef {import('./store.js').Store} Store */

/** @param {Store} store */
export function saveButtons(store) {
  const copy = async () => {
    try {
      store.address.write();
      await navigator.clipboard.writeText(location.href);
      store.say('Link copied.');
    } catch {
      store.say('The address bar holds the link.');
    }
  };
  const button = (
    /** @type {string} */ kind,
  ) => html`<button type="button" class="quiet" id=${`export-${kind.toLowerCase()}`}
    ?disabled=${!store.savable} @click=${() => save(store, kind)}>${kind}</button>`;
  return html`<div class="exports" role="group" aria-label="Export what is seen">
    <button type="button" class="quiet" id="copy-link" @click=${copy}>Copy link</button>${['PNG', 'SVG', 'JSON'].map(button)}</div>`;
}

/** @param {Store} store @param {string} kind */
async function save(store, kind) {
  const shown = store.savable;
  if (!shown) return;
  const { name, scene, json } = store.view.file(store, shown);
  const { texts, tokens, off, model } = shown.reply.reading;
  const { words, view } = store.state;
  const title = `${name} · ${model} · ${texts.join(' / ')}`;
  const heading = title.length > MOST_TITLE ? `${title.slice(0, MOST_TITLE - 1)}…` : title;
  const content = { model, texts, tokens, off, words, view, ...json };
  const file =
    kind === 'JSON' ? toJson(content) : kind === 'SVG' ? toSvg(scene, heading) : await toPng(scene, heading);
  download(file, `headscope ${name}.${kind.toLowerCase()}`.replaceAll(' ', '-'));
  store.say(`Saved as ${kind}.`);
}

/** @param {Scene} scene @param {string} title */
function toSvg(scene, title) {
  const [width, height] = outer(scene);
  const surface = new SvgSurface(width, height);
  compose(surface, scene, title, (x, y, draw) => surface.shifted(x, y, draw));
  return new Blob([surface.toString()], { type: 'image/svg+xml' });
}

/** @param {Scene} scene @param {string} title @returns {Promise<Blob>} at twice its size where that is not too large */
function toPng(scene, title) {
  const [width, height] = outer(scene);
  const scale = Math.min(2, Math.sqrt(MOST_PIXELS / (width * height)));
  const canvas = document.createElement('canvas');
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = contextOf(canvas);
  context.scale(scale, scale);
  compose(new CanvasSurface(context), scene, title, (x, y, draw) => {
    context.save();
    context.translate(x, y);
    draw();
    context.restore();
  });
  return new Promise((resolve, reject) => {
    const done = (/** @type {Blob|null} */ blob) =>
      blob ? resolve(blob) : reject(new Error('This picture is too large.'));
    canvas.toBlob(done, 'image/png');
  });
}

/** @param {Object} content */
const toJson = (content) => new Blob([`${JSON.stringify(content, null, 1)}\n`], { type: 'application/json' });

/** @param {Scene} scene */
const outer = ({ width, height }) => [
  Math.ceil(width) + 2 * MARGIN,
  Math.ceil(height) + HEADING + 2 * MARGIN,
];

/**
 * @param {import('./surface.js').Surface} surface
 * @param {Scene} scene
 * @param {string} title
 * @param {(x: number, y: number, draw: () => void) => void} shifted
 */
function compose(surface, scene, title, shifted) {
  const colours = themeColours();
  const [width, height] = outer(scene);
  surface.rect(0, 0, width, height, colours.ground);
  surface.text(title, MARGIN, MARGIN + 10, { size: 15, bold: true, colour: colours.ink });
  for (const part of scene.parts ?? [{ ...scene, x: 0, y: 0 }]) {
    shifted(MARGIN + part.x, MARGIN + HEADING + part.y, () => {
      if (part.title) surface.text(part.title, 0, -14, { size: 13, colour: colours.soft });
      part.draw?.(surface, colours);
    });
  }
}

/** Hand a file to the browser. @param {Blob} blob @param {string} name */
function download(blob, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
