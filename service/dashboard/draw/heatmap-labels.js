/**
 * Labels of a heatmap: names, axes, colours, the border between two texts, the cell under the pointer.
 *
 * @typedef {import('./heatmap.js').Layout} Layout
 * @typedef {import('./canvas-and-svg.js').Surface} Surface
 * @typedef {Object} Marks
 * @property {import('../core/maps.js').NamedMap} map
 * @property {import('./heatmap.js').HeatmapOptions} options
 * @property {import('./heatmap.js').Cell} focus
 * @property {number[]} held rows
 * @property {import('./colours.js').Theme} colours
 */

import { fixed } from '../core/numbers.js';
import { fit } from './canvas-and-svg.js';
import { exponentOf, rampImage, themeColours } from './colours.js';

/** Size of the smallest type, in pixels. */
const SMALLEST = 12;
/** Pixels between two names. */
const NAME = 12;
const TITLE = 12;
/** Width of a bar of colours below which it has three numbers. */
const NARROW = 200;
const BAR = { gap: 14, height: 8, width: 240, ticks: [0, 0.25, 0.5, 0.75, 1] };

/** @param {Surface} surface @param {Layout} view @param {Marks} marks */
export function decorate(surface, view, marks) {
  drawBoundaries(surface, view, marks);
  drawTitles(surface, view, marks);
  drawRowNames(surface, view, marks);
  drawColumnNames(surface, view, marks);
  drawColours(surface, view, marks);
  drawFocus(surface, view, marks);
}

/** @param {Surface} surface @param {Layout} view @param {Marks} marks */
function drawBoundaries(surface, { left, top, cell, tall, wide, high, x, y }, { map, colours }) {
  const border = (/** @type {import('../core/words.js').Unit[]} */ units) =>
    units.findIndex((unit, i) => i > 0 && unit.segment !== units[i - 1].segment);
  const [down, across] = [border(map.rows) - y, border(map.columns) - x];
  if (across > 0 && across < wide)
    surface.line(left + across * cell, top, left + across * cell, top + high * tall, colours.soft);
  if (down > 0 && down < high)
    surface.line(left, top + down * tall, left + wide * cell, top + down * tall, colours.soft);
}

/** @param {Surface} surface @param {Layout} view @param {Marks} marks */
function drawTitles(surface, { left, top, tall, high }, { map, colours }) {
  const style = { size: SMALLEST, colour: colours.soft };
  const [across, down] = map.axes ?? ['looked at →', '← looks'];
  surface.text(across, left, 6, style);
  surface.text(down, 6, top + high * tall, { ...style, turn: -90 });
}

/** @param {Surface} surface @param {Layout} view @param {Marks} marks */
function drawRowNames(surface, { left, top, tall, high, y }, { map, focus, held, colours }) {
  for (const { place, bold } of named(map.rows.length, y, high, tall, [focus.row, ...held])) {
    const name = fit(map.rows[place].label, left - 10 - TITLE, SMALLEST);
    const style = /** @type {const} */ ({ size: SMALLEST, bold, align: 'right', colour: colours.ink });
    surface.text(name, left - 6, top + (place + 0.5 - y) * tall, style);
  }
}

/** @param {Surface} surface @param {Layout} view @param {Marks} marks */
function drawColumnNames(surface, { left, top, cell, wide, x }, { map, focus, colours }) {
  for (const { place, bold } of named(map.columns.length, x, wide, cell, [focus.column])) {
    const name = fit(map.columns[place].label, top - 8 - TITLE, SMALLEST);
    const style = { size: SMALLEST, bold, turn: -90, colour: colours.ink };
    surface.text(name, left + (place + 0.5 - x) * cell, top - 6, style);
  }
}

/**
 * Return the units whose names have room: the emphasised ones, and as many others as do not touch.
 *
 * @param {number} count
 * @param {number} first that is seen
 * @param {number} span how many are seen
 * @param {number} cell pixels
 * @param {number[]} strong
 */
function named(count, first, span, cell, strong) {
  const step = Math.ceil(NAME / cell);
  const apart = (/** @type {number} */ place) =>
    strong.every((other) => other < 0 || other === place || Math.abs(other - place) * cell >= NAME);
  const found = [];
  for (let place = Math.max(0, Math.floor(first)); place < first + span && place < count; place += 1) {
    const bold = strong.includes(place);
    const inside = place + 0.5 >= first && place + 0.5 <= first + span;
    if (inside && (bold || (place % step === 0 && apart(place)))) found.push({ place, bold });
  }
  return found;
}

/** Draw the bar of colours. @param {Surface} surface @param {Layout} view @param {Marks} marks */
function drawColours(surface, { left, top, cell, tall, wide, high }, { map, options }) {
  const width = Math.min(BAR.width, Math.max(120, wide * cell));
  const { full, linear } = options;
  const scale = { full, linear, signed: Boolean(map.signed), keys: map.columns.length };
  drawColourBar(surface, left, top + high * tall + BAR.gap, width, scale);
}

/**
 * Draw a bar of colours with the weights that they stand for.
 *
 * @param {Surface} surface
 * @param {number} x
 * @param {number} y
 * @param {number} width
 * @param {{full: number, linear: boolean, signed: boolean, keys: number, over?: boolean}} scale as of `paint`
 */
export function drawColourBar(surface, x, y, width, { full, linear, signed, keys, over }) {
  const colours = themeColours();
  const image = rampImage(signed, over);
  surface.picture(image, [0, 0, image.width, 1], x, y, width, BAR.height);
  surface.frame(x, y, width, BAR.height, colours.faint);
  const exponent = linear ? 1 : exponentOf(keys);
  for (const place of width < NARROW ? [0, 0.5, 1] : BAR.ticks) {
    const from = signed ? 2 * place - 1 : place;
    const weight = full * Math.sign(from) * Math.abs(from) ** (1 / exponent);
    surface.text(shortened(weight), x + place * width, y + BAR.height + 9, {
      size: SMALLEST,
      colour: colours.soft,
      align: place === 0 ? 'left' : place === 1 ? 'right' : 'center',
    });
  }
}

/** @param {number} weight */
const shortened = (weight) =>
  weight === 0
    ? '0'
    : Math.abs(weight) < 0.001
      ? weight.toExponential(0)
      : fixed(weight, Math.abs(weight) < 0.1 ? 3 : 2);

/** @param {Surface} surface @param {Layout} view @param {Marks} marks */
function drawFocus(surface, { left, top, cell, tall, wide, high, x, y }, { focus, colours }) {
  const { row, column } = focus;
  const [atX, atY] = [left + (column - x) * cell, top + (row - y) * tall];
  const outline = (/** @type {number[]} */ [across, down, width, height]) =>
    surface.frame(across - 1, down - 1, width + 2, height + 2, colours.soft);
  if (row >= 0 && row + 1 > y && row < y + high) outline([left, Math.max(top, atY), wide * cell, tall]);
  if (column >= 0 && column + 1 > x && column < x + wide)
    outline([Math.max(left, atX), top, cell, high * tall]);
  if (row >= y && column >= x && row >= 0 && column >= 0)
    surface.frame(atX - 2, atY - 2, cell + 4, tall + 4, colours.ink);
}
