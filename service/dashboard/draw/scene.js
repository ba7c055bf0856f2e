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
import { CanvasSurface, SvgSurface } from './canvas-and-svg.js';
import { themeColours } from './colours.js';

const MARGIN = 24;
const HEADING = 40;
const MOST_PIXELS = 16_000_000;

/** @param {Scene} scene @param {string} title */
export function toSvg(scene, title) {
  const [width, height] = outer(scene);
  const surface = new SvgSurface(width, height);
  compose(surface, scene, title, (x, y, draw) => surface.shifted(x, y, draw));
  return new Blob([surface.toString()], { type: 'image/svg+xml' });
}

/** @param {Scene} scene @param {string} title @returns {Promise<Blob>} at twice its size where that is not too large */
export function toPng(scene, title) {
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

/** @param {Scene} scene */
const outer = ({ width, height }) => [
  Math.ceil(width) + 2 * MARGIN,
  Math.ceil(height) + HEADING + 2 * MARGIN,
];

/**
 * @param {import('./canvas-and-svg.js').Surface} surface
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
