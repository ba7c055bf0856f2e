/**
 * Features as bars, each row with its own scale: a query, a key, and their products.
 *
 * @typedef {{name: string, title: string, values: number[], high: number}} FeatureRow `values` by the
 *   features' numbers; `high` in pixels
 * @typedef {{label: string, rows: FeatureRow[], order: number[]}} Features `order`: the features' numbers,
 *   as they stand from left to right
 */

import { fixed } from '../core/numbers.js';
import { fit } from './canvas-and-svg.js';

const LEFT = 48;
const TITLE = 28;
const GAP = 12;
const NUMBERS = 20;
const WIDEST_LABEL = 24;
const FILE_WIDTH = 760;
export const NO_FEATURE = -1;

/** @param {Features} features @returns {number} pixels */
export const heightOf = ({ rows }) => rows.reduce((sum, { high }) => sum + TITLE + high + GAP, NUMBERS);

/**
 * @param {Features} features
 * @param {number} width
 * @param {number} x
 * @returns {number} the place in `order` at a distance from the left
 */
export function placeAt({ order }, width, x) {
  const place = Math.floor(((x - LEFT) / (width - LEFT)) * order.length);
  return place >= 0 && place < order.length ? place : NO_FEATURE;
}

/**
 * @param {import('./canvas-and-svg.js').Surface} surface
 * @param {import('./colours.js').Theme} colours
 * @param {Features} features
 * @param {number} width
 * @param {number} [pointed] place in `order`
 */
export function drawFeatures(surface, colours, features, width, pointed = NO_FEATURE) {
  const { rows, order } = features;
  const cell = (width - LEFT) / order.length;
  const bottom = heightOf(features) - NUMBERS;
  if (pointed !== NO_FEATURE) surface.rect(LEFT + pointed * cell, 0, cell, bottom, colours.faint);
  let top = 0;
  for (const row of rows) {
    const title = fit(row.title, width, 12);
    surface.text(title, 0, top + 8, { size: 12, bold: true, colour: colours.soft });
    drawRow(surface, colours, row, order, cell, top + TITLE);
    top += TITLE + row.high + GAP;
  }
  const step = Math.ceil(WIDEST_LABEL / cell);
  order.forEach((feature, place) => {
    const isNamed = pointed === NO_FEATURE ? place % step === 0 : place === pointed;
    const style = /** @type {const} */ ({ size: 12, colour: colours.soft, align: 'center' });
    if (isNamed) surface.text(String(feature), LEFT + (place + 0.5) * cell, bottom, style);
  });
}

/**
 * @param {import('./canvas-and-svg.js').Surface} surface
 * @param {import('./colours.js').Theme} colours
 * @param {FeatureRow} row
 * @param {number[]} order
 * @param {number} cell
 * @param {number} top
 */
function drawRow(surface, colours, { values, high }, order, cell, top) {
  const most = Math.max(...values, 0);
  const least = Math.min(...values, 0);
  const scale = high / (most - least || 1);
  const zero = top + most * scale;
  const style = /** @type {const} */ ({ size: 12, colour: colours.soft, align: 'right' });
  const labelled = [most, least].filter((end) => Math.abs(end) * scale > 12 || end === most);
  for (const end of labelled) surface.text(fixed(end, 2), LEFT - 6, zero - end * scale, style);
  const gap = cell > 4 ? Math.min(3, cell * 0.2) : 0;
  order.forEach((feature, place) => {
    const value = values[feature];
    const colour = value < 0 ? colours.mark : colours.line;
    const tall = Math.abs(value) * scale;
    surface.rect(
      LEFT + place * cell + gap / 2,
      value < 0 ? zero : zero - tall,
      Math.max(0.5, cell - gap),
      tall,
      colour,
    );
  });
  surface.line(LEFT, zero, LEFT + order.length * cell, zero, colours.soft);
}

/** Return the scene for a file. @param {Features} features @returns {import('./scene.js').Scene} */
export const featuresScene = (features) => ({
  width: FILE_WIDTH,
  height: heightOf(features),
  draw: (surface, colours) => drawFeatures(surface, colours, features, FILE_WIDTH),
});
