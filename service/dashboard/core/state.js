/**
 * The page's state, all of it in the address.
 *
 * @typedef {Object} State
 * @property {string} a the text
 * @property {string|null} b the second text of a sentence pair
 * @property {string} c the text of the comparison
 * @property {string} view one of VIEWS
 * @property {number} layer
 * @property {number} head
 * @property {string} sort `position`, `link`, `label`, a statistic, or `cross`
 * @property {boolean} up sorted from the smallest
 * @property {number|null} from token that looks, of the finder
 * @property {number|null} to token that is looked at, of the finder
 * @property {number[]} pins tokens whose links are held
 * @property {string} target what a decoder is to have written of the text
 * @property {string} cross the head of cross-attention, as `layer.head`; `mean` of the last layer's
 * @property {boolean} aligned the words that cross-attention aligns, not the weights of tokens
 * @property {number[]} held tokens of the target whose links are held
 * @property {string} why how it is explained that two texts are alike: `pairs`, `occlusion` or `decomposition`
 * @property {string} many texts that a head is looked at over, one a line; built-in ones when empty
 * @property {string} best by what these are sorted: `link` or a statistic
 * @property {string} other model that a text is looked at in too; the first other one when empty
 * @property {string} against head of that model, as `layer.head`, or `alike`
 * @property {string[]} overlaid heads whose lines are drawn beside those of the chosen one, as `layer.head`
 * @property {boolean} strongest features of a query and a key stand by their products, not by their numbers
 * @property {boolean} words word pieces merged
 * @property {boolean} bare special tokens hidden
 * @property {boolean} cut long texts truncated
 * @property {string} measure what maps are of: `weights` or `norms`
 * @property {boolean} linear colours in proportion to weights, not relative to even attention
 * @property {number} min weakest link that is drawn
 * @property {string} part `all` or a quadrant of a pair: `aa`, `ab`, `ba`, `bb`
 * @property {string[]} off heads switched off, as `layer.head`
 * @property {boolean} most while heads are switched off, Ablation shows the head that moved most
 * @property {number[]} zoom of the heatmap: factor, then the first column and row
 * @property {boolean} live
 */

import { STATISTICS } from './statistics.js';

export const VIEWS = [
  'heads',
  'head',
  'compared',
  'rollout',
  'ablation',
  'comparison',
  'target',
  'why',
  'texts',
  'models',
];
export const FIRST_TEXT = "The animal didn't cross the street because it was too tired.";

/** @type {State} */
export const INITIAL = Object.freeze({
  a: FIRST_TEXT,
  b: null,
  c: "The animal didn't cross the street because it was too wide.",
  view: 'heads',
  layer: 0,
  head: 0,
  sort: 'position',
  up: false,
  from: null,
  to: null,
  pins: [],
  target: '',
  cross: 'mean',
  aligned: false,
  held: [],
  why: 'pairs',
  many: '',
  best: 'link',
  other: '',
  against: 'alike',
  overlaid: [],
  strongest: false,
  words: false,
  bare: false,
  cut: false,
  measure: 'weights',
  linear: false,
  min: 0.02,
  part: 'all',
  off: [],
  most: true,
  zoom: [1, 0, 0],
  live: false,
});

/** @typedef {(text: string) => unknown} Reader gives undefined of what it cannot read */

/** @param {string} text */
const integer = (text) => (/^\d{1,6}$/.test(text) ? Number(text) : undefined);
/** @param {string} text */
const number = (text) => (/^\d{1,6}(\.\d{1,6})?$/.test(text) ? Number(text) : undefined);
/** @param {Reader} read @returns {Reader} */
const list = (read) => (text) => {
  const items = text === '' ? [] : text.split(',').map(read);
  return items.includes(undefined) ? undefined : [...new Set(items)];
};
/** @type {Reader} */
const string = (text) => text;
/** @type {Reader} */
const flag = (text) => (text === '0' ? false : text === '1' ? true : undefined);
/** @param {string[]} names @returns {Reader} */
const oneOf = (names) => (text) => (names.includes(text) ? text : undefined);
/** @param {string} text */
const head = (text) => (/^\d{1,4}\.\d{1,4}$/.test(text) ? text : undefined);
/** @type {Reader} */
const zoom = (text) => {
  const found = text.split(',').map(number);
  const [factor] = found;
  const isZoom = found.length === 3 && !found.includes(undefined);
  return isZoom && factor !== undefined && factor >= 1 && factor <= 64 ? found : undefined;
};

/** @type {Object<string, Reader>} */
const READERS = {
  a: string,
  b: string,
  c: string,
  view: oneOf(VIEWS),
  layer: integer,
  head: integer,
  sort: (text) => (/^[a-z]{1,20}$/.test(text) ? text : undefined),
  up: flag,
  from: integer,
  to: integer,
  pins: list(integer),
  target: string,
  cross: (text) => (text === 'mean' ? text : head(text)),
  aligned: flag,
  held: list(integer),
  why: oneOf(['pairs', 'occlusion', 'decomposition']),
  many: string,
  best: oneOf(['link', ...Object.keys(STATISTICS)]),
  other: string,
  against: (text) => (text === 'alike' ? text : head(text)),
  overlaid: list(head),
  strongest: flag,
  words: flag,
  bare: flag,
  cut: flag,
  measure: oneOf(['weights', 'norms']),
  linear: flag,
  min: number,
  part: oneOf(['all', 'aa', 'ab', 'ba', 'bb']),
  off: list(head),
  most: flag,
  zoom,
  live: flag,
};

/** What of a state is about one text, and falls with it. */
export const OF_ONE_TEXT = { from: null, to: null, pins: [], held: [], zoom: [1, 0, 0] };

/**
 * @param {string} hash with or without its `#`; what cannot be read is left at its default
 * @returns {State}
 */
export function read(hash) {
  /** @type {any} */
  const found = { ...INITIAL };
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ''))) {
    const value = Object.hasOwn(READERS, name) ? READERS[name](text) : undefined;
    if (value !== undefined) found[name] = value;
  }
  return found;
}

/**
 * @param {State} state
 * @returns {string} `#…`, with what differs from the default only
 */
export function write(state) {
  const parameters = new URLSearchParams();
  for (const name of Object.keys(READERS)) {
    const [value, initial] = [state, INITIAL].map((/** @type {any} */ one) => one[name]);
    if (value === null || String(value) === String(initial)) continue;
    parameters.set(name, typeof value === 'boolean' ? String(Number(value)) : String(value));
  }
  return `#${parameters}`;
}
