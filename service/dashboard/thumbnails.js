/**
 * A head as a small picture that can be clicked.
 *
 * @typedef {{values: Float32Array, width: number, height: number, keys: number}} Small a map made
 *   small; `keys` is how many a row of the whole map has
 * @typedef {Object} Thumbnail
 * @property {number} layer
 * @property {number} head
 * @property {string|null} label a key of LABELS
 * @property {HTMLButtonElement} button
 * @property {HTMLCanvasElement} canvas
 * @property {Small|null} small
 */

import { paint } from './colours.js';
import { element } from './dom.js';
import { shrink } from './matrix.js';

const THUMBNAIL = 96;

/** @returns {Thumbnail} */
export function makeThumbnail(layer, head, label, onPick) {
  const canvas = element('canvas', { 'aria-hidden': 'true' });
  const button = element(
    'button',
    { type: 'button', class: 'thumbnail', tabIndex: -1, on: { click: onPick } },
    canvas,
    element('span', { class: 'thumbnail-name' }),
    element('span', { class: 'thumbnail-label' }),
  );
  return { layer, head, label, button, canvas, small: null };
}

/** @param {Thumbnail} thumbnail nothing is painted before its map is there */
export function paintThumbnail({ canvas, small }, { linear }) {
  if (!small) return;
  paint(canvas, small.values, small.width, small.height, { linear, keys: small.keys });
  canvas.classList.toggle('fine', small.width > THUMBNAIL / 2);
}

/** @param {import('./maps.js').NamedMap} map @returns {Small} a copy, so that the map can be let go */
export function reduced({ rows, columns, weights }) {
  const keys = columns.length;
  if (rows.length !== keys) return { values: weights, width: keys, height: rows.length, keys };
  const { values, size } = shrink(weights, rows.length, THUMBNAIL);
  return { values: values === weights ? weights.slice() : values, width: size, height: size, keys };
}

/**
 * Thumbnails as a drawing, row by row.
 *
 * @param {Thumbnail[]} ordered
 * @param {number} across how many stand in a row
 */
export function gallery(ordered, across) {
  const [wide, high] = [THUMBNAIL + 12, THUMBNAIL + 38];
  return {
    width: across * wide,
    height: Math.ceil(ordered.length / across) * high,
    draw: (surface, colours) =>
      ordered.forEach(({ button, canvas, small }, i) => {
        const [x, y] = [(i % across) * wide, Math.floor(i / across) * high];
        if (small) surface.picture(canvas, [0, 0, small.width, small.height], x, y, THUMBNAIL, THUMBNAIL);
        surface.frame(x, y, THUMBNAIL, THUMBNAIL, colours.faint);
        surface.text(button.querySelector('.thumbnail-name').textContent, x, y + THUMBNAIL + 11, {
          size: 11,
          bold: true,
          colour: colours.ink,
        });
        surface.text(button.querySelector('.thumbnail-label').textContent, x, y + THUMBNAIL + 25, {
          size: 10,
          colour: colours.soft,
        });
      }),
  };
}
