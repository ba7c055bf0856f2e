/**
 * The page's state, all of it in the address. One schema gives each field its type, its initial value and the
 * range of values that an address may have.
 */

import { FIRST_QUERY, FIRST_RESULTS } from './example-results.js';
import { STATISTICS } from './statistics.js';

/**
 * @template T
 * @typedef {{initial: T, read: (text: string) => T|undefined}} Field `read` returns undefined for text that is
 *   not a value of the field
 */

export const VIEWS = /** @type {const} */ ([
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
  'search',
]);
/** Views with the finder of heads by a link. */
export const WITH_FINDER = /** @type {readonly string[]} */ (['heads', 'head', 'compared']);
export const FIRST_TEXT = "The animal didn't cross the street because it was too tired.";
/** Names of the statistics of a head. */
const MEASURED = Object.keys(STATISTICS);

/** Ranges of numbers, both ends included. */
const HEADS = [0, 9999];
const TOKENS = [0, 999_999];
/** Range of the slider for the weakest link. */
const WEAKEST = [0, 0.5];
const RESULTS = [0, 49];
const ZOOM_FACTORS = [1, 64];

/** @param {string} initial @returns {Field<string>} any text */
const text = (initial) => ({ initial, read: (written) => written });

/** @type {Field<string|null>} */
const optionalText = { initial: null, read: (written) => written };

/** @param {boolean} initial @returns {Field<boolean>} 0 or 1 */
const flag = (initial) => ({
  initial,
  read: (written) => (written === '1' ? true : written === '0' ? false : undefined),
});

/**
 * @template {string} T
 * @param {readonly T[]} values
 * @param {NoInfer<T>} initial
 * @returns {Field<T>} one of the values
 */
const oneOf = (values, initial) => ({
  initial,
  read: (written) => values.find((value) => value === written),
});

/** @param {string} written @param {number[]} range */
function numberIn(written, [least, most]) {
  const value = /^\d{1,6}(\.\d{1,6})?$/.test(written) ? Number(written) : Number.NaN;
  return value >= least && value <= most ? value : undefined;
}

/** @param {string} written @param {number[]} range */
const integerIn = (written, range) => (written.includes('.') ? undefined : numberIn(written, range));

/** @param {number} initial @param {number[]} range @returns {Field<number>} */
const number = (initial, range) => ({ initial, read: (written) => numberIn(written, range) });

/** @param {number} initial @param {number[]} range @returns {Field<number>} */
const integer = (initial, range) => ({ initial, read: (written) => integerIn(written, range) });

/** @param {number[]} range @returns {Field<number|null>} */
const optionalInteger = (range) => ({ initial: null, read: (written) => integerIn(written, range) });

/** A head as `layer.head`. @param {string} written */
const headName = (written) => (/^\d{1,4}\.\d{1,4}$/.test(written) ? written : undefined);

/** @param {string} word @returns {Field<string>} the word, or a head as `layer.head` */
const wordOrHead = (word) => ({
  initial: word,
  read: (written) => (written === word ? word : headName(written)),
});

/**
 * @template T
 * @param {(written: string) => T|undefined} read
 * @returns {Field<T[]>} values between commas, each once
 */
const list = (read) => ({
  initial: [],
  read: (written) => {
    const values = written === '' ? [] : written.split(',').map(read);
    const known = values.filter((value) => value !== undefined);
    return known.length === values.length ? [...new Set(known)] : undefined;
  },
});

/** @type {Field<number[]>} factor, then the first column and row that are shown */
const zoom = {
  initial: [1, 0, 0],
  read: (written) => {
    const [factor, column, row, more] = written.split(',');
    const values = [
      numberIn(factor, ZOOM_FACTORS),
      ...[column, row].map((edge) => numberIn(edge ?? '', TOKENS)),
    ].filter((value) => value !== undefined);
    return values.length === 3 && more === undefined ? values : undefined;
  },
};

/** Spans of words left out of the query (`q`) or of a result: `q:4-7`, `3:0-7,9-12`. @param {string} written */
const leftOut = (written) =>
  /^(q|[0-4]?\d):\d{1,6}-\d{1,6}(,\d{1,6}-\d{1,6})*$/.test(written) ? written : undefined;

/** Fields in the order in which an address has them. */
const SCHEMA = {
  /** The text. */
  a: text(FIRST_TEXT),
  /** Second text of a sentence pair. */
  b: optionalText,
  /** Text to compare with. */
  c: text("The animal didn't cross the street because it was too wide."),
  view: oneOf(VIEWS, 'heads'),
  layer: integer(0, HEADS),
  head: integer(0, HEADS),
  /** Order of all heads. */
  sort: oneOf(['position', 'link', 'label', ...MEASURED, 'cross'], 'position'),
  /** Whether heads are sorted from the smallest. */
  up: flag(false),
  /** Token whose attention the link finder ranks. */
  from: optionalInteger(TOKENS),
  /** Token that it attends to. */
  to: optionalInteger(TOKENS),
  /** Tokens whose links stay marked. */
  pins: list((written) => integerIn(written, TOKENS)),
  /** Target of the decoder. */
  target: text(''),
  /** Head of cross-attention; `mean` of the last layer's heads. */
  cross: wordOrHead('mean'),
  /** Tokens of the target whose links stay marked. */
  held: list((written) => integerIn(written, TOKENS)),
  /** Method that explains a similarity. */
  why: oneOf(['occlusion', 'pairs', 'decomposition'], 'occlusion'),
  /** Texts of *Many texts*, one a line; the built-in samples when empty. */
  many: text(''),
  /** Order of these texts. */
  best: oneOf(['link', ...MEASURED], 'link'),
  /** Token of the text whose like are looked for in these texts. */
  like: optionalInteger(TOKENS),
  /** Hidden states in which they are looked for; the last ones when null. */
  after: optionalInteger(HEADS),
  /** Number of these tokens that are shown. */
  listed: integer(20, [1, TOKENS[1]]),
  /** Model of *Two models*; the first other model when empty. */
  other: text(''),
  /** Head of that model; `alike` for the most similar one. */
  against: wordOrHead('alike'),
  /** Query of *Search*. */
  q: text(FIRST_QUERY),
  /** Results to rank: one a line, CSV or JSONL. */
  results: text(FIRST_RESULTS),
  /** Name of results that are too long for the address. */
  stored: {
    initial: '',
    read: (/** @type {string} */ written) => (/^[0-9a-f]{16}$/.test(written) ? written : undefined),
  },
  /** Prompts of the query and of the results; the model's own when null. */
  qprompt: optionalText,
  dprompt: optionalText,
  /** Results to compare. */
  picks: list((written) => integerIn(written, RESULTS)),
  /** Words left out, as `goneOf` writes them. */
  gone: { initial: '', read: leftOut },
  /** Model whose ranks are shown beside the page's model. */
  versus: text(''),
  /** Number of results whose tokens are left out one by one. */
  explained: integer(10, [1, 50]),
  /** Heads whose lines are drawn beside those of the chosen head. */
  overlaid: list(headName),
  /** Whether features are sorted by their products instead of by number. */
  strongest: flag(false),
  /** Whether word pieces are merged. */
  words: flag(false),
  /** Whether special tokens are hidden. */
  bare: flag(false),
  /** Whether long texts are truncated. */
  cut: flag(false),
  /** Unit of a map's cells. */
  measure: oneOf(['weights', 'norms'], 'weights'),
  /** Whether colours are in proportion to weights, not relative to even attention. */
  linear: flag(false),
  /** Weakest link that is drawn. */
  min: number(0.02, WEAKEST),
  /** Quadrant of a pair's map. */
  part: oneOf(['all', 'aa', 'ab', 'ba', 'bb'], 'all'),
  /** Heads switched off. */
  off: list(headName),
  /** Whether *Ablation* shows the head that moved most. */
  most: flag(true),
  /** Section of the heatmap that is shown. */
  zoom,
  /** What the page gives a model of two towers. */
  input: oneOf(['pictures', 'texts'], 'pictures'),
  /** Opacity of a map over its picture. */
  opacity: number(0.8, [0, 1]),
  /** Whether a map over a picture is smooth. */
  smooth: flag(false),
  /** What *Why alike?* compares a picture with. */
  beside: oneOf(['text', 'picture'], 'text'),
  /** Whether the live panel is open. */
  live: flag(false),
};

/** @typedef {{[Name in keyof typeof SCHEMA]: (typeof SCHEMA)[Name]['initial']}} State */
/** @typedef {State['view']} ViewName */

const NAMES = /** @type {(keyof State)[]} */ (Object.keys(SCHEMA));

export const INITIAL = Object.freeze(
  /** @type {State} */ (Object.fromEntries(NAMES.map((name) => [name, SCHEMA[name].initial]))),
);

/** Initial values of the fields that are about one text. */
export const OF_ONE_TEXT = { from: null, to: null, pins: [], held: [], like: null, zoom: [1, 0, 0] };

/**
 * Read a state from an address.
 *
 * @param {string} hash with or without its `#`; a field that is missing or out of range has its initial value
 * @returns {State}
 */
export function read(hash) {
  const state = { ...INITIAL };
  const parameters = new URLSearchParams(hash.replace(/^#/, ''));
  for (const name of NAMES) {
    const written = parameters.getAll(name).map((value) => SCHEMA[name].read(value));
    const value = written.findLast((known) => known !== undefined);
    if (value !== undefined) Object.assign(state, { [name]: value });
  }
  return state;
}

/**
 * Write a state as an address.
 *
 * @param {State} state
 * @returns {string} `#…`, only with the fields that differ from their initial values
 */
export function write(state) {
  const parameters = new URLSearchParams();
  for (const name of NAMES) {
    const value = state[name];
    if (value === null || String(value) === String(INITIAL[name])) continue;
    parameters.set(name, typeof value === 'boolean' ? String(Number(value)) : String(value));
  }
  return `#${parameters}`;
}
