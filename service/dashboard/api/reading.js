/**
 * A text or pair as the service sees it: tokens and statistics at once, maps on demand. Never holds all maps
 * of a long text.
 *
 * @typedef {Object} Source
 * @property {string[]} texts one, or the two of a sentence pair; for a picture its name
 * @property {boolean} cut
 * @property {string[]} off heads switched off, as `layer.head`
 * @property {string} [model] another one of the service than the page's
 *
 * @typedef {import('../core/maps.js').Measure} Measure
 * @typedef {{bits: Uint16Array, side: number}} SmallMaps float16 `[L, N, side, side]`
 */

import { decode } from '../core/float16.js';
import { inputOf, viewIn } from '../core/held-pictures.js';
import { LruCache } from '../core/lru-cache.js';
import { THUMBNAIL_SIDE } from '../core/maps.js';
import { SharedWork } from '../core/shared-work.js';
import { labelOf, namesFor, STATISTICS } from '../core/statistics.js';
import { placesOf, separators } from '../core/words.js';
import { attention } from './client.js';

const CHUNK_BYTES = 8 * 2 ** 20;
const MAPS_BYTES = 24 * 2 ** 20;
const READINGS = 6;
const ROWS = 8;
/** Number of chunks that are kept, for two readers that go through all maps side by side. */
const CHUNKS = 2;
/** Names of tensors in the binary form. */
const TENSORS = { weights: 'attention.0', norms: 'norms.0' };
/** Request fields for a small map of every head. */
const SMALL = { max_size: THUMBNAIL_SIDE, dtype: 'float16' };

export class Reading {
  #body;
  /** @type {LruCache<string, Float32Array>} */
  #maps = new LruCache();
  /** @type {LruCache<string, Float32Array>} */
  #rows = new LruCache();
  /** @type {LruCache<number, Uint16Array>} */
  #chunks = new LruCache();
  /** @type {LruCache<string, Float32Array>} */
  #rollouts = new LruCache();
  /** @type {SmallMaps|null} */
  #small = null;
  #shared = new SharedWork();

  /** @param {Source} source @param {import('./client.js').BinaryReply} reply */
  constructor(source, { tensors, lists, model, milliseconds, warnings }) {
    const { texts, off } = source;
    this.#body = requestOf(source);
    this.texts = texts;
    this.off = off;
    this.model = model;
    this.milliseconds = milliseconds;
    const [tokens, offsets] = [lists.tokens[0], lists.offsets[0]];
    this.tokens = tokens;
    this.offsets = offsets;
    this.segments = placesOf({ tokens, offsets, segments: [...tensors.segment_ids.data], texts });
    this.truncated = Boolean(tensors.truncated.data[0]);
    this.unknown = Boolean(warnings.unknown_tokens);
    this.size = tokens.length;
    this.view = viewIn(lists);
    this.names = namesFor(this);
    this.layers = lists.layers.length;
    this.heads = lists.heads.length;
    this.separators = separators(tokens, offsets).length;
    this.shift = tensors.pooled_shift ? tensors.pooled_shift.data[0] : 0;
    /** @type {Object<string, Float32Array>} `[L · N]` a name */
    this.statistics = {};
    for (const name of Object.keys(STATISTICS)) this.statistics[name] = floats(tensors[`stats.0.${name}`]);
    if (tensors['attention.0']) this.#keepSmall(tensors['attention.0']);
  }

  /**
   * @param {Source} source
   * @param {boolean} maps whether small maps of every head are fetched with it, in one run of the model
   * @param {AbortSignal} signal
   * @returns {Promise<Reading>}
   */
  static async open(source, maps, signal) {
    const wanted = maps ? { ...SMALL, include: ['weights', 'stats'] } : { include: ['stats'] };
    return new Reading(source, await attention({ ...requestOf(source), ...wanted }, signal));
  }

  /** @param {number} layer @param {number} head @returns {Object<string, number>} its statistics */
  statisticsOf(layer, head) {
    const place = layer * this.heads + head;
    return Object.fromEntries(Object.entries(this.statistics).map(([name, values]) => [name, values[place]]));
  }

  /** @param {number} layer @param {number} head @returns {string|null} a key of LABELS */
  labelOf(layer, head) {
    return labelOf(this.statisticsOf(layer, head), this.size, this.separators);
  }

  /** @param {{layer: number, head: number}} state @returns {{layer: number, head: number}} that there is */
  place({ layer, head }) {
    return { layer: Math.min(layer, this.layers - 1), head: Math.min(head, this.heads - 1) };
  }

  /** Return the layer and the number of a head by its place among all. @param {number} place */
  headAt(place) {
    return { layer: Math.floor(place / this.heads), head: place % this.heads };
  }

  /**
   * @param {number} layer
   * @param {number} head
   * @param {AbortSignal} signal
   * @param {Measure} [measure]
   * @returns {Promise<Float32Array>} `[S, S]` of one head
   */
  async map(layer, head, signal, measure = 'weights') {
    const key = `${measure} ${layer}.${head}`;
    const most = Math.max(2, Math.floor(MAPS_BYTES / (4 * this.size ** 2)));
    const known = this.#maps.get(key);
    if (known) return this.#maps.keep(key, known, most);
    const ask = (/** @type {AbortSignal} */ ending) =>
      attention({ ...this.#body, layers: [layer], heads: [head], include: [measure] }, ending);
    const { tensors } = await this.#shared.wait(key, signal, ask);
    return this.#maps.keep(key, floats(tensors[TENSORS[measure]]).slice(), most);
  }

  /**
   * Return the cross-attention of a target over the text.
   *
   * @param {string} text of the target
   * @param {{layer: number, head: number|null}} place the mean over the layer's heads when null
   * @param {AbortSignal} signal
   * @param {Measure} measure
   */
  async target(text, { layer, head }, signal, measure) {
    const body = { ...this.#body, targets: [text], maps: ['cross'], include: [measure, 'logprobs'] };
    const asked = { ...body, layers: [layer], ...(head === null ? {} : { heads: [head] }) };
    const { tensors, lists } = await attention(asked, signal);
    const maps = tensors[`cross_${TENSORS[measure]}`];
    const cells = maps.shape[2] * maps.shape[3];
    const weights = new Float32Array(cells);
    maps.data.forEach((weight, i) => {
      weights[i % cells] += weight / maps.shape[1];
    });
    return {
      tokens: /** @type {string[][]} */ (lists.target_tokens)[0],
      offsets: /** @type {number[][][]} */ (lists.target_offsets)[0],
      /** `[T, S]` */
      weights,
      logprobs: floats(tensors.target_logprobs).slice(),
    };
  }

  /** @param {Measure} measure @param {AbortSignal} signal @returns {Promise<Float32Array>} `[S, S]` */
  async rollout(measure, signal) {
    const name = measure === 'norms' ? 'norm_rollout' : 'rollout';
    const known = this.#rollouts.get(name);
    if (known) return known;
    const { tensors } = await attention({ ...this.#body, include: [name] }, signal);
    return this.#rollouts.keep(name, floats(tensors[`${name}.0`]).slice(), 2);
  }

  /**
   * Yield every head's map in float16, some layers at a time. Maps of a short text are fetched at once and
   * kept.
   *
   * @param {AbortSignal} signal
   * @returns {AsyncGenerator<{layer: number, head: number, bits: Uint16Array}>} `bits` `[S, S]`
   */
  async *everyMap(signal) {
    const cells = this.size ** 2;
    const together = Math.max(1, Math.floor(CHUNK_BYTES / (2 * this.heads * cells)));
    for (let first = 0; first < this.layers; first += together) {
      const layers = Array.from({ length: Math.min(together, this.layers - first) }, (_, i) => first + i);
      const all = await this.#chunk(layers, signal);
      for (let place = 0; place < layers.length * this.heads; place += 1) {
        const head = place % this.heads;
        yield {
          layer: first + (place - head) / this.heads,
          head,
          bits: all.subarray(place * cells, (place + 1) * cells),
        };
      }
    }
  }

  /** @param {number[]} layers @param {AbortSignal} signal */
  async #chunk(layers, signal) {
    const [first] = layers;
    if (this.#small?.side === this.size) return this.#ofSmall(layers);
    const known = this.#chunks.get(first);
    if (known) return known;
    const { tensors } = await this.#shared.wait(`layer ${first}`, signal, (ending) =>
      attention({ ...this.#body, layers, dtype: 'float16' }, ending),
    );
    return this.#chunks.keep(first, /** @type {Uint16Array} */ (tensors['attention.0'].data), CHUNKS);
  }

  /** Return maps from the small maps, which are complete for a short text. @param {number[]} layers */
  #ofSmall(layers) {
    const { bits } = /** @type {SmallMaps} */ (this.#small);
    const cells = this.heads * this.size ** 2;
    return bits.subarray(layers[0] * cells, (layers[0] + layers.length) * cells);
  }

  /**
   * Return every head's map pooled by maxima to at most `THUMBNAIL_SIDE`; complete for a short text.
   *
   * @param {AbortSignal} signal
   * @returns {Promise<SmallMaps>}
   */
  async smallMaps(signal) {
    if (this.#small) return this.#small;
    const { tensors } = await attention({ ...this.#body, ...SMALL }, signal);
    return this.#keepSmall(tensors['attention.0']);
  }

  /** @param {import('../core/safetensors.js').Tensor} maps */
  #keepSmall({ data, shape }) {
    this.#small = { bits: /** @type {Uint16Array} */ (data), side: shape[3] };
    return this.#small;
  }

  /**
   * Return the attention of these tokens in every head, averaged over the tokens. A short text's comes from
   * the maps for thumbnails, a long text's from a request for these rows.
   *
   * @param {number[]} tokens that look
   * @param {AbortSignal} signal
   * @returns {Promise<Float32Array>} `[L, N, S]`
   */
  async attentionFrom(tokens, signal) {
    const key = tokens.join();
    const known = this.#rows.get(key);
    if (known) return known;
    const rows = new Float32Array(this.layers * this.heads * this.size);
    const add = (/** @type {number} */ place, /** @type {Uint16Array} */ bits) => {
      const row = decode(bits);
      for (let i = 0; i < this.size; i += 1) rows[place * this.size + i] += row[i] / tokens.length;
    };
    if (this.size > THUMBNAIL_SIDE) {
      const { tensors } = await attention({ ...this.#body, queries: tokens, dtype: 'float16' }, signal);
      const bits = /** @type {Uint16Array} */ (tensors['attention.0'].data);
      for (let start = 0; start < bits.length; start += this.size)
        add(Math.floor(start / this.size / tokens.length), bits.subarray(start, start + this.size));
    } else
      for await (const { layer, head, bits } of this.everyMap(signal)) {
        for (const token of tokens)
          add(layer * this.heads + head, bits.subarray(token * this.size, (token + 1) * this.size));
      }
    return this.#rows.keep(key, rows, ROWS);
  }
}

/** @param {import('../core/safetensors.js').Tensor} tensor */
const floats = (tensor) => /** @type {Float32Array} */ (tensor.data);

/** @param {Source} source */
export function requestOf({ texts, cut, off, model }) {
  /** @type {Object<string, unknown>} */
  const body = { inputs: texts.length === 2 ? [texts] : texts.map(inputOf), truncate: cut };
  if (model !== undefined) body.model = model;
  if (off.length) {
    body.ablate = off.map((name) => {
      const [layer, head] = name.split('.').map(Number);
      return { layer, head };
    });
  }
  return body;
}

/** @type {LruCache<string, Reading>} */
const readings = new LruCache();
const opening = new SharedWork();

/**
 * Return the reading of a text; the same object for a text that was opened recently.
 *
 * @param {Source} source
 * @param {AbortSignal} signal
 * @param {boolean} [maps] whether small maps of every head are wanted at once
 * @returns {Promise<Reading>}
 */
export async function open(source, signal, maps = false) {
  const key = JSON.stringify([source.texts, source.cut, source.off, source.model]);
  const begin = (/** @type {AbortSignal} */ ending) => Reading.open(source, maps, ending);
  const reading = readings.get(key) ?? (await opening.wait(key, signal, begin));
  return readings.keep(key, reading, READINGS);
}
