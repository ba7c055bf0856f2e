/**
 * Thumbnails of maps.
 *
 * @typedef {{values: Float32Array, width: number, height: number, keys: number, note?: string}} Small a map made
 *   small; `keys` is how many a row of the whole map has, `note` is written over it
 * @typedef {{name: string, label: string, small: Small|null}} Picture
 */

import { THUMBNAIL_SIDE } from '../core/maps.js';
import { pooled } from '../core/matrix.js';
import { paint } from './colours.js';
import { drawColourBar } from './heatmap-labels.js';

/** Pixels for the bar of colours under all thumbnails, and its width. */
const BAR = { height: 34, width: 240 };

/** @param {HTMLCanvasElement} canvas @param {Small|null} small @param {boolean} linear */
export function paintSmall(canvas, small, linear) {
  if (!small) return;
  paint(canvas, small.values, small.width, small.height, { linear, keys: small.keys });
  canvas.classList.toggle('fine', small.width > THUMBNAIL_SIDE / 2);
}

/** @param {import('../core/maps.js').NamedMap} map @returns {Small} a copy, so that the map can be let go */
export function reduced({ rows, columns, weights }) {
  const keys = columns.length;
  if (rows.length !== keys) return { values: weights, width: keys, height: rows.length, keys };
  const side = Math.min(keys, THUMBNAIL_SIDE);
  return { values: pooled(weights, [keys, keys], [side, side]), width: side, height: side, keys };
}

/**
 * Return the scene of all thumbnails, row by row.
 *
 * @param {Picture[]} pictures
 * @param {number} across how many stand in a row
 * @param {boolean} linear
 * @param {(canvas: HTMLCanvasElement, small: Small|null, linear: boolean) => void} [paints] each on a scale of its own
 * @returns {import('./scene.js').Scene}
 */
export function gallery(pictures, across, linear, paints = paintSmall) {
  const isOnOneScale = paints === paintSmall;
  const [wide, high] = [THUMBNAIL_SIDE + 12, THUMBNAIL_SIDE + 38];
  const rows = Math.ceil(pictures.length / across);
  const keys = pictures.find(({ small }) => small)?.small?.keys ?? 1;
  return {
    width: across * wide,
    height: rows * high + (isOnOneScale ? BAR.height : 0),
    draw: (surface, colours) => {
      if (isOnOneScale)
        drawColourBar(surface, 0, rows * high + 8, BAR.width, { full: 1, linear, signed: false, keys });
      pictures.forEach(({ name, label, small }, i) => {
        const [x, y] = [(i % across) * wide, Math.floor(i / across) * high];
        const canvas = document.createElement('canvas');
        paints(canvas, small, linear);
        if (small)
          surface.picture(canvas, [0, 0, canvas.width, canvas.height], x, y, THUMBNAIL_SIDE, THUMBNAIL_SIDE);
        surface.frame(x, y, THUMBNAIL_SIDE, THUMBNAIL_SIDE, colours.faint);
        surface.text(name, x, y + THUMBNAIL_SIDE + 11, { size: 12, bold: true, colour: colours.ink });
        surface.text(label, x, y + THUMBNAIL_SIDE + 25, { size: 12, colour: colours.soft });
      });
    },
  };
}
