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
 * @typedef {ReturnType<typeof layoutOf>} Layout pixels of the corner and of a cell; in cells: how many
 *   are seen, and the first
 */

import { placeOf } from '../core/maps.js';
import { paint, theme, themeColours } from './colours.js';
import { decorate } from './heatmap-labels.js';

/** Pixels for the bar of colours under a map. */
const BAR = 44;
const FILE_CELL = 12;
const FILE_SIDE = { least: 420, most: 2600 };
/** @type {Cell} */
export const NOTHING = Object.freeze({ row: -1, column: -1 });

/** @param {NamedMap} map @param {HeatmapOptions} options @param {number} width of everything */
export function layoutOf({ rows, columns }, { zoom, small }, width) {
  const left = small ? 64 : 86;
  const top = small ? 56 : 70;
  const side = Math.max(60, width - left - 4);
  const cell = (side / Math.max(rows.length, columns.length)) * zoom[0];
  const wide = Math.min(columns.length, side / cell);
  const high = Math.min(rows.length, side / cell);
  const x = Math.max(0, Math.min(columns.length - wide, zoom[1]));
  const y = Math.max(0, Math.min(rows.length - high, zoom[2]));
  return { left, top, cell, wide, high, x, y, width, height: top + high * cell + BAR };
}

/** @type {WeakMap<NamedMap, {key: string, image: HTMLCanvasElement}>} */
const images = new WeakMap();

/** @param {NamedMap} map @param {HeatmapOptions} options one pixel a cell, painted once */
function imageOf(map, { linear, full }) {
  const key = `${linear} ${full} ${theme()}`;
  const known = images.get(map);
  if (known?.key === key) return known.image;
  const image = known?.image ?? document.createElement('canvas');
  const { weights, rows, columns, signed } = map;
  paint(image, weights, columns.length, rows.length, { linear, signed, full });
  images.set(map, { key, image });
  return image;
}

/**
 * @param {import('./canvas-and-svg.js').Surface} surface
 * @param {NamedMap} map
 * @param {HeatmapOptions} options
 * @param {Layout} view
 * @param {Cell} pointed
 */
export function drawHeatmap(surface, map, options, view, pointed) {
  const { left, top, cell, wide, high, x, y } = view;
  const colours = themeColours();
  surface.picture(imageOf(map, options), [x, y, wide, high], left, top, wide * cell, high * cell);
  surface.frame(left, top, wide * cell, high * cell, colours.faint);
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
