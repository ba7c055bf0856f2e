/**
 * Words or tokens of a text with a number each, in the order of the text.
 *
 * @typedef {Object} Marked
 * @property {string} before text between the word before it and this one
 * @property {string} label
 * @property {number} start in code points
 * @property {number} end
 * @property {number|null} value null if it is not known
 * @property {boolean} unknown whether one of its tokens is the unknown token
 * @typedef {{words: Marked[], after: string, rest: number, largest: number}} MarkedText `after` is the text behind
 *   the last token, `rest` the sum of the values of special tokens, `largest` the largest size of a value
 */

import { tokenUnits, wordUnits } from './words.js';

/** Names of tokens that are a space alone. */
const SPACE = /^[\s▁Ġ]*$/u;

/**
 * @param {string} text
 * @param {{tokens: string[], offsets: number[][], unknown: number[], shares?: (number|null)[]}} info
 * @param {boolean} merged whether the values of a word's tokens are summed; losses do not add up
 * @returns {MarkedText}
 */
export function markedText(text, { tokens, offsets, unknown, shares = [] }, merged) {
  const points = Array.from(text);
  const tokenized = { tokens, offsets, segments: tokens.map(() => 0), texts: [text] };
  const units = merged ? wordUnits(tokenized) : tokenUnits(tokenized);
  const totalOf = (/** @type {number[]} */ places) =>
    places.reduce((/** @type {number|null} */ sum, place) => added(sum, shares[place] ?? null), 0);
  let [end, rest] = [0, 0];
  /** Value of a space before the next word, whose part it is. @type {number|null} */
  let space = 0;
  /** @type {Marked[]} */
  const words = [];
  for (const unit of units) {
    const value = totalOf(unit.tokens);
    if (unit.special) {
      rest += value ?? 0;
      continue;
    }
    const stop = Math.max(...unit.tokens.map((token) => offsets[token][1]));
    let start = Math.max(end, Math.min(...unit.tokens.map((token) => offsets[token][0])));
    while (start < stop && /\s/u.test(points[start])) start += 1;
    const isSpace = unit.tokens.every((token) => SPACE.test(tokens[token]));
    if (isSpace && merged) {
      space = added(space, value);
      continue;
    }
    const before = points.slice(end, start).join('');
    const label = (isSpace ? '' : points.slice(start, stop).join('')) || '␣';
    words.push({
      before,
      label,
      start,
      end: isSpace ? start : stop,
      value: added(space, value),
      unknown: unit.tokens.some((token) => unknown.includes(token)),
    });
    space = 0;
    end = Math.max(end, isSpace ? start : stop);
  }
  const largest = words.reduce((most, { value }) => Math.max(most, Math.abs(value ?? 0)), 0);
  return { words, after: points.slice(end).join(''), rest: rest + (space ?? 0), largest };
}

/** @param {number|null} sum @param {number|null} value */
const added = (sum, value) => (sum === null || value === null ? null : sum + value);

/**
 * Return the spans of all occurrences of a word, without regard to case.
 *
 * @param {Marked[]} words
 * @param {Marked} word
 */
export const occurrences = (words, { label }) =>
  words
    .filter((one) => one.label.toLowerCase() === label.toLowerCase() && one.start < one.end)
    .map(({ start, end }) => [start, end]);
