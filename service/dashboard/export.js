/** What is seen, as a file. */

import { themeColours } from './colours.js';
import { CanvasSurface, SvgSurface } from './surface.js';

const MARGIN = 24;
const HEADING = 40;
const MOST_PIXELS = 16_000_000;

/**
 * A drawing: either `draw`, or `parts` with places and titles of their own.
 *
 * @typedef {{width: number, height: number, draw?: Function, parts?: Object[]}} Scene
 */

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
  const context = canvas.getContext('2d');
  context.scale(scale, scale);
  compose(new CanvasSurface(context), scene, title, (x, y, draw) => {
    context.save();
    context.translate(x, y);
    draw();
    context.restore();
  });
  return new Promise((resolve) => {
    canvas.toBlob(resolve, 'image/png');
  });
}

/** @param {Object} content */
export const toJson = (content) =>
  new Blob([`${JSON.stringify(content, null, 1)}\n`], { type: 'application/json' });

const outer = ({ width, height }) => [
  Math.ceil(width) + 2 * MARGIN,
  Math.ceil(height) + HEADING + 2 * MARGIN,
];

function compose(surface, scene, title, shifted) {
  const colours = themeColours();
  const [width, height] = outer(scene);
  surface.rect(0, 0, width, height, colours.ground);
  surface.text(title, MARGIN, MARGIN + 10, { size: 15, bold: true, colour: colours.ink });
  for (const part of scene.parts ?? [{ ...scene, x: 0, y: 0 }]) {
    shifted(MARGIN + part.x, MARGIN + HEADING + part.y, () => {
      if (part.title) surface.text(part.title, 0, -14, { size: 13, colour: colours.soft });
      part.draw(surface, colours);
    });
  }
}

/** Hand a file to the browser. */
export function download(blob, name) {
  const link = document.createElement('a');
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
