/**
 * A map as a grid of colours.
 *
 * @typedef {import('../core/maps.js').NamedMap} NamedMap
 * @typedef {{row: number, column: number}} Cell −1 where none
 * @typedef {Object} HeatmapOptions
 * @property {string} name of the map
 * @property {number} full the weight of the strongest colour
 * @property {boolean} linear
 * @property {number[]} zoom factor, then the first column and row
 * @property {number[]} pins tokens whose links are held
 * @property {boolean} small
 * @typedef {ReturnType<typeof layoutOf>} Layout pixels of the corner, and of a cell across and down; in cells:
 *   how many are seen, and the first
 */

import { placeOf } from '../core/maps.js';
import { pooled } from '../core/matrix.js';
import { widthOf } from './canvas-and-svg.js';
import { paint, theme, themeColours } from './colours.js';
import { decorate } from './heatmap-labels.js';

/** Pixels for the bar of colours under a map. */
const BAR = 44;
/** Pixels of a narrow map's shorter side, and of a cell along it. */
const NARROW = { side: 200, cell: 22 };
/** Pixels of the names beside a map: bounds, and the share of the width that they may take. */
const GUTTER = { least: 64, most: 170, share: 0.3, size: 12, around: 24 };
const FILE_CELL = 12;
const FILE_SIDE = { least: 420, most: 2600 };
/** @type {Cell} */
export const NOTHING = Object.freeze({ row: -1, column: -1 });

/** @type {WeakMap<import('../core/words.js').Unit[], number>} */
const longest = new WeakMap();

/** Return the pixels that the names of units take. @param {import('../core/words.js').Unit[]} units @param {number} width */
function gutterOf(units, width) {
  const known =
    longest.get(units) ?? units.reduce((most, { label }) => Math.max(most, widthOf(label, GUTTER.size)), 0);
  longest.set(units, known);
  const most = Math.max(GUTTER.least, Math.min(GUTTER.most, width * GUTTER.share));
  return Math.round(Math.max(GUTTER.least, Math.min(most, known + GUTTER.around)));
}

/**
 * Return the pixels of a cell along an axis: as along the longer one, but so many that a short axis can be read.
 *
 * @param {number} count
 * @param {number} square
 */
const cellAlong = (count, square) => Math.max(square, Math.min(NARROW.cell, NARROW.side / count));

/** @param {NamedMap} map @param {HeatmapOptions} options @param {number} width of everything */
export function layoutOf({ rows, columns }, { zoom }, width) {
  const left = gutterOf(rows, width);
  const top = gutterOf(columns, width);
  const side = Math.max(60, width - left - 4);
  const square = side / Math.max(rows.length, columns.length);
  const cell = Math.min(cellAlong(columns.length, square), side / columns.length) * zoom[0];
  const tall = Math.min(cellAlong(rows.length, square), side / rows.length) * zoom[0];
  const wide = Math.min(columns.length, side / cell);
  const high = Math.min(rows.length, side / tall);
  const x = Math.max(0, Math.min(columns.length - wide, zoom[1]));
  const y = Math.max(0, Math.min(rows.length - high, zoom[2]));
  return { left, top, cell, tall, wide, high, x, y, width, height: top + high * tall + BAR };
}

/** @type {WeakMap<NamedMap, {key: string, image: HTMLCanvasElement}>} */
const images = new WeakMap();

/**
 * Return the image of a map, painted once, and the part of it that is seen: one pixel a cell, or where cells are
 * smaller than pixels one pixel a pixel, with the strongest of its cells.
 *
 * @param {NamedMap} map
 * @param {HeatmapOptions} options
 * @param {Layout} view
 * @param {number} scale pixels of the surface in a pixel of the layout
 * @returns {{image: HTMLCanvasElement, part: number[]}}
 */
function imageOf(map, { linear, full }, view, scale) {
  const { weights, rows, columns, signed } = map;
  const { cell, tall, wide, high, x, y } = view;
  const [across, down] = [Math.round(wide * cell * scale), Math.round(high * tall * scale)];
  const isFine = across < wide || down < high;
  const part = isFine ? [0, 0, across, down] : [x, y, wide, high];
  const key = `${linear} ${full} ${theme()} ${isFine ? [x, y, wide, high, across, down] : ''}`;
  const known = images.get(map);
  if (known?.key === key) return { image: known.image, part };
  const image = known?.image ?? document.createElement('canvas');
  const shape = [rows.length, columns.length];
  const [values, height, width] = isFine
    ? [pooled(weights, shape, [down, across], [y, x, high, wide]), down, across]
    : [weights, ...shape];
  paint(image, values, width, height, { linear, signed, full, keys: columns.length });
  images.set(map, { key, image });
  return { image, part };
}

/**
 * @param {import('./canvas-and-svg.js').Surface} surface
 * @param {NamedMap} map
 * @param {HeatmapOptions} options
 * @param {Layout} view
 * @param {Cell} pointed
 */
export function drawHeatmap(surface, map, options, view, pointed) {
  const { left, top, cell, tall, wide, high } = view;
  const colours = themeColours();
  const { image, part } = imageOf(map, options, view, surface.scale);
  surface.picture(image, part, left, top, wide * cell, high * tall);
  surface.frame(left - 1, top - 1, wide * cell + 2, high * tall + 2, colours.faint);
  const held = options.pins.map((token) => placeOf(map.rows, token));
  decorate(surface, view, { map, options, focus: pointed, held, colours });
}

/**
 * Return the scene for a file, large enough for the names.
 *
 * @param {NamedMap} map
 * @param {HeatmapOptions} options
 * @returns {import('./scene.js').Scene}
 */
export function heatmapScene(map, options) {
  const count = Math.max(map.rows.length, map.columns.length);
  const side = Math.max(FILE_SIDE.least, Math.min(FILE_SIDE.most, FILE_CELL * count));
  const { left } = layoutOf(map, options, side);
  const view = layoutOf(map, options, left + side + 4);
  return {
    width: view.width,
    height: view.height,
    draw: (surface) => drawHeatmap(surface, map, options, view, NOTHING),
  };
}
