/**
 * Drawings as files.
 *
 * A scene has either `draw`, or `parts` with places and titles of their own.
 *
 * @typedef {(surface: import('./canvas-and-svg.js').Surface, colours: import('./colours.js').Theme) => void} Draw
 * @typedef {{width: number, height: number, draw?: Draw, parts?: Part[]}} Scene
 * @typedef {Scene & {x: number, y: number, title?: string}} Part
 */

import { contextOf } from './canvas.js';
import { CanvasSurface, SvgSurface, widthOf } from './canvas-and-svg.js';
import { themeColours } from './colours.js';

const MARGIN = 24;
const HEADING = { size: 15, line: 20, gap: 20 };
const STACK = { title: 26, gap: 14 };
const MOST_PIXELS = 16_000_000;

/** Return the element of an SVG document. @param {Scene} scene @param {string} title */
export function toSvg(scene, title) {
  const [width, height] = outer(scene, title);
  const surface = new SvgSurface(width, height);
  compose(surface, scene, title, (x, y, draw) => surface.shifted(x, y, draw));
  return surface.root;
}

/** @param {Scene} scene @param {string} title @returns {Promise<Blob>} at twice its size where that is not too large */
export function toPng(scene, title) {
  const [width, height] = outer(scene, title);
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

/** Return the width and height of a file. @param {Scene} scene @param {string} title */
const outer = ({ width, height }, title) => [
  Math.ceil(width) + 2 * MARGIN,
  Math.ceil(height) + headingHeight(title, width) + 2 * MARGIN,
];

/** @param {string} title @param {number} width */
const headingHeight = (title, width) => linesOf(title, width).length * HEADING.line + HEADING.gap;

/** Break a title into lines that fit into a width, between words where it can. @param {string} title @param {number} width */
export function linesOf(title, width) {
  const fits = (/** @type {string} */ line) => widthOf(line, HEADING.size, true) <= width;
  /** @type {string[]} */
  const lines = [];
  let line = '';
  for (const word of title.split(/(?<= )/)) {
    if (line && !fits(line + word.trimEnd())) {
      lines.push(line.trimEnd());
      line = '';
    }
    for (const point of word) {
      if (line && !fits(line + point) && point !== ' ') {
        lines.push(line);
        line = '';
      }
      line += point;
    }
  }
  return [...lines, line];
}

/**
 * @param {import('./canvas-and-svg.js').Surface} surface
 * @param {Scene} scene
 * @param {string} title
 * @param {(x: number, y: number, draw: () => void) => void} shifted
 */
function compose(surface, scene, title, shifted) {
  const colours = themeColours();
  const [width, height] = outer(scene, title);
  surface.rect(0, 0, width, height, colours.ground);
  linesOf(title, scene.width).forEach((line, i) => {
    const y = MARGIN + HEADING.line / 2 + i * HEADING.line;
    surface.text(line, MARGIN, y, { size: HEADING.size, bold: true, colour: colours.ink });
  });
  const top = MARGIN + headingHeight(title, scene.width);
  for (const part of scene.parts ?? [{ ...scene, x: 0, y: 0 }]) {
    shifted(MARGIN + part.x, top + part.y, () => {
      if (part.title) surface.text(part.title, 0, -14, { size: 13, colour: colours.soft });
      part.draw?.(surface, colours);
    });
  }
}

/**
 * Return a scene of others one below another, each with a title.
 *
 * @param {(Scene & {title?: string})[]} scenes those of parts have titles of their own
 * @returns {Scene}
 */
export function stacked(scenes) {
  let y = 0;
  const parts = scenes.flatMap((scene) => {
    const top = y + STACK.title;
    y = top + scene.height + STACK.gap;
    if (!scene.parts) return [{ ...scene, x: 0, y: top }];
    return scene.parts.map((part) => ({ ...part, y: top + part.y }));
  });
  return { width: Math.max(...scenes.map(({ width }) => width)), height: y - STACK.gap, parts };
}

/**
 * Return a scene of others side by side, below their titles if they have some.
 *
 * @param {(Scene & {title?: string})[]} scenes
 * @param {number} [gap] pixels between two
 * @returns {Scene}
 */
export function sideBySide(scenes, gap = 24) {
  const y = scenes.some(({ title }) => title) ? STACK.title : 0;
  let x = -gap;
  const parts = scenes.map((scene) => {
    const part = { ...scene, x: x + gap, y };
    x = part.x + scene.width;
    return part;
  });
  return { width: x, height: y + Math.max(...scenes.map(({ height }) => height)), parts };
}
