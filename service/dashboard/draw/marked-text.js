/**
 * Texts with a number at each token or word, and tables of numbers with bars, for files.
 *
 * @typedef {{label: string, value: number|null}} Mark `value` is null where it is not known
 * @typedef {{from: string, to: string, value: number}} Pair
 * @typedef {import('./scene.js').Scene} Scene
 */

import { fixed } from '../core/numbers.js';
import { fit, widthOf } from './canvas-and-svg.js';

const WIDTH = 620;
const ROW = { height: 46, gap: 6, pad: 7 };
const PAIR = { height: 22, to: 200, bar: 400, number: 600 };

/** @param {Mark[]} marks @returns {number} the largest magnitude */
const strongest = (marks) => marks.reduce((most, { value }) => Math.max(most, Math.abs(value ?? 0)), 1e-9);

/**
 * Return the scene of a text, each token with its number and a bar on the text's own scale; bars below 0 have
 * the colour of negative numbers.
 *
 * @param {Mark[]} marks
 * @returns {Scene}
 */
export function markedScene(marks) {
  const most = strongest(marks);
  let [x, y] = [0, 0];
  const placed = marks.map((mark) => {
    const number = mark.value === null ? '–' : fixed(mark.value, 3);
    const width = Math.max(widthOf(mark.label, 13), widthOf(number, 11)) + 2 * ROW.pad;
    if (x > 0 && x + width > WIDTH) [x, y] = [0, y + ROW.height];
    const place = { ...mark, number, x, y, width };
    x += width + ROW.gap;
    return place;
  });
  return {
    width: WIDTH,
    height: y + ROW.height,
    draw: (surface, colours) => {
      for (const one of placed) {
        const middle = one.x + one.width / 2;
        surface.text(one.label, middle, one.y + 9, { colour: colours.ink, align: 'center' });
        surface.text(one.number, middle, one.y + 25, { size: 12, colour: colours.soft, align: 'center' });
        const value = one.value ?? 0;
        const colour = value < 0 ? colours.mark : colours.line;
        surface.rect(one.x, one.y + 34, one.width, 4, colour, 0.1 + 0.9 * (Math.abs(value) / most));
      }
    },
  };
}

/**
 * Return the scene of pairs of tokens, each with its number and a bar.
 *
 * @param {Pair[]} pairs
 * @returns {Scene}
 */
export function pairsScene(pairs) {
  const most = strongest(pairs.map(({ from, value }) => ({ label: from, value })));
  return {
    width: WIDTH,
    height: Math.max(1, pairs.length) * PAIR.height,
    draw: (surface, colours) =>
      pairs.forEach(({ from, to, value }, i) => {
        const y = (i + 0.5) * PAIR.height;
        const room = PAIR.to - 2 * ROW.pad;
        surface.text(fit(from, room), 0, y, { colour: colours.ink });
        surface.text(fit(to, room), PAIR.to, y, { colour: colours.ink });
        const colour = value < 0 ? colours.mark : colours.line;
        surface.rect(PAIR.bar, y - 4, (PAIR.number - 70 - PAIR.bar) * (Math.abs(value) / most), 8, colour);
        surface.text(fixed(value, 4), PAIR.number, y, { colour: colours.ink, align: 'right' });
      }),
  };
}
