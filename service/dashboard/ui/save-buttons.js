/** Buttons that copy the page's link and save the view as a file. */

import { html } from '../core/html.js';
import { toPng, toSvg } from '../draw/scene.js';

const MOST_TITLE = 160;

/** @typedef {import('./store.js').Store} Store */

/** @param {Store} store */
export function saveButtons(store) {
  const copy = async () => {
    store.address.write();
    store.announce(
      (await copied(location.href)) ? 'Link copied.' : 'Not copied: the address bar has the link.',
    );
  };
  const button = (
    /** @type {string} */ kind,
  ) => html`<button type="button" class="quiet" id=${`export-${kind.toLowerCase()}`}
    ?disabled=${!store.savable} @click=${() => save(store, kind)}>${kind}</button>`;
  return html`<div class="exports" role="group" aria-label="Export what is seen">
    <span class="says" aria-hidden="true">${store.announced}</span><button type="button" class="quiet" id="copy-link" @click=${copy}>Copy link</button>${['PNG', 'SVG', 'JSON'].map(button)}</div>`;
}

/** Copy a text to the clipboard, and return whether it is there. @param {string} text */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedWithoutApi(text);
  }
}

/** Copy a text where browsers have no `navigator.clipboard`, as on a page over plain HTTP. @param {string} text */
function copiedWithoutApi(text) {
  const focused = document.activeElement;
  const field = document.createElement('textarea');
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand('copy');
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return done;
}

/** @param {Store} store @param {string} kind */
async function save(store, kind) {
  const { savable } = store;
  if (!savable) return;
  const { name, scene, json, texts: own } = savable.make();
  const { tokens, off, model } = savable.reading;
  const texts = own ?? savable.reading.texts;
  const { words, view } = store.state;
  const title = [name, model, texts.join(' / ')].filter(Boolean).join(' · ');
  const heading = title.length > MOST_TITLE ? `${title.slice(0, MOST_TITLE - 1)}…` : title;
  const content = { model, texts, ...(own ? {} : { tokens }), off, words, view, ...json };
  const file =
    kind === 'JSON' ? toJson(content) : kind === 'SVG' ? toSvg(scene, heading) : await toPng(scene, heading);
  download(file, `headscope ${name}.${kind.toLowerCase()}`.replaceAll(' ', '-'));
  store.announce(`Saved as ${kind}.`);
}

/** @param {Object} content */
const toJson = (content) => new Blob([`${JSON.stringify(content, null, 1)}\n`], { type: 'application/json' });

/** Let the browser save a file. @param {Blob} blob @param {string} name */
export function download(blob, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
