/**
 * Words or tokens of a text with a number each, in the order of the text.
 *
 * @typedef {Object} Marked
 * @property {string} before text between the word before it and this one
 * @property {string} label
 * @property {number} start in code points
 * @property {number} end
 * @property {number|null} value null if it is not known
 * @property {number[]} tokens
 * @property {boolean} unknown whether one of its tokens is the unknown token
 * @typedef {{label: string, value: number|null}} Special
 * @typedef {{words: Marked[], after: string, specials: Special[], rest: number, largest: number}} MarkedText `after`
 *   is the text behind the last word, `rest` the sum of the values of special tokens, `largest` the largest size of
 *   a value
 */

import { tokenUnits, wordUnits } from './words.js';

/** Names of tokens that are a space alone. */
const SPACE = /^[\s▁Ġ]*$/u;

/**
 * @param {string} text
 * @param {{tokens: string[], offsets: number[][], unknown: number[], shares?: ArrayLike<number|null>}} info `shares` are null or NaN where they are not known
 * @param {boolean} merged whether the values of a word's tokens are summed; losses do not add up
 * @returns {MarkedText}
 */
export function markedText(text, { tokens, offsets, unknown, shares = [] }, merged) {
  const points = Array.from(text);
  const tokenized = { tokens, offsets, segments: tokens.map(() => 0), texts: [text] };
  const units = merged ? wordUnits(tokenized) : tokenUnits(tokenized);
  const totalOf = (/** @type {number[]} */ places) =>
    places.reduce((/** @type {number|null} */ sum, place) => added(sum, known(shares[place])), 0);
  let [end, rest] = [0, 0];
  /** Value of a space before the next word, whose part it is. @type {number|null} */
  let space = 0;
  /** @type {Marked[]} */
  const words = [];
  /** @type {Special[]} */
  const specials = [];
  for (const unit of units) {
    const value = totalOf(unit.tokens);
    if (unit.special) {
      rest += value ?? 0;
      specials.push({ label: unit.label, value });
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
      tokens: unit.tokens,
      unknown: unit.tokens.some((token) => unknown.includes(token)),
    });
    space = 0;
    end = Math.max(end, isSpace ? start : stop);
  }
  return {
    words,
    after: points.slice(end).join(''),
    specials,
    rest: rest + (space ?? 0),
    largest: largestOf(words),
  };
}

/**
 * Return the words or sentences of spans with their values.
 *
 * @param {string} text
 * @param {{start: number, end: number, tokens: number[]}[]} spans in the order of the text
 * @param {ArrayLike<number|null>} values null or NaN where they are not known
 * @returns {MarkedText}
 */
export function markedSpans(text, spans, values) {
  const points = Array.from(text);
  const words = spans.map(({ start, end, tokens }, i) => ({
    before: points.slice(spans[i - 1]?.end ?? 0, start).join(''),
    label: points.slice(start, end).join(''),
    start,
    end,
    value: known(values[i]),
    tokens,
    unknown: false,
  }));
  const after = points.slice(spans.at(-1)?.end ?? 0).join('');
  return { words, after, specials: [], rest: 0, largest: largestOf(words) };
}

/** @param {number|null|undefined} value */
const known = (value) => (value === undefined || Number.isNaN(value) ? null : value);

/** Return the largest size of a value. @param {Special[]} words */
const largestOf = (words) => words.reduce((most, { value }) => Math.max(most, Math.abs(value ?? 0)), 0);

/** Number of words that a sentence names, and the least size of their values as a share of the largest. */
const NAMED = { count: 2, least: 0.1 };

/**
 * Return the words with the largest values above and below 0, each word once.
 *
 * @param {Special[]} words
 * @returns {{label: string, value: number}[][]} those above 0, then those below
 */
export function leading(words) {
  const least = Math.max(NAMED.least * largestOf(words), 5e-4);
  return [1, -1].map((sign) => {
    /** @type {Map<string, {label: string, value: number}>} */
    const found = new Map();
    const strong = words.flatMap(({ label, value }) =>
      value && value * sign >= least ? [{ label, value }] : [],
    );
    strong.sort((one, other) => Math.abs(other.value) - Math.abs(one.value));
    for (const word of strong) {
      const name = word.label.toLowerCase();
      if (/[\p{L}\p{N}]/u.test(name) && !found.has(name)) found.set(name, word);
    }
    return [...found.values()].slice(0, NAMED.count);
  });
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
