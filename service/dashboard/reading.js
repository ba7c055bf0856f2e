/**
 * What the service says of one text, or of one pair: tokens and statistics at once, maps when they
 * are looked at. Never holds all maps of a long text.
 *
 * @typedef {Object} Source
 * @property {string[]} texts one, or the two of a sentence pair
 * @property {boolean} cut
 * @property {string[]} off heads switched off, as `layer.head`
 */

import { attention } from './api.js';
import { decode } from './float16.js';
import { STATISTICS } from './statistics.js';
import { placesOf, separators } from './words.js';

const CHUNK_BYTES = 8 * 2 ** 20;
const MAPS_BYTES = 24 * 2 ** 20;
const READINGS = 6;
const ROWS = 8;

/** Keeps what was used last. */
class Recent extends Map {
  keep(key, value, most) {
    this.delete(key);
    this.set(key, value);
    while (this.size > most) this.delete(this.keys().next().value);
    return value;
  }
}

export class Reading {
  #body;
  #maps = new Recent();
  #rows = new Recent();
  #whole = null;
  #rollout = null;

  constructor({ texts, cut, off }, { tensors, lists, milliseconds }) {
    this.#body = requestOf({ texts, cut, off });
    this.texts = texts;
    this.off = off;
    this.milliseconds = milliseconds;
    [this.tokens] = lists.tokens;
    [this.offsets] = lists.offsets;
    const { tokens: names, offsets } = this;
    this.segments = placesOf({ tokens: names, offsets, segments: [...tensors.segment_ids.data], texts });
    this.truncated = Boolean(tensors.truncated.data[0]);
    this.size = this.tokens.length;
    this.layers = lists.layers.length;
    this.heads = lists.heads.length;
    this.separators = separators(names, offsets).length;
    this.shift = tensors.pooled_shift ? tensors.pooled_shift.data[0] : null;
    /** @type {Object<string, Float32Array>} `[L · N]` a name */
    this.statistics = {};
    for (const name of Object.keys(STATISTICS)) this.statistics[name] = tensors[`stats.0.${name}`].data;
  }

  /** @returns {Promise<Reading>} */
  static async open(source, signal) {
    return new Reading(source, await attention({ ...requestOf(source), include: ['stats'] }, signal));
  }

  /** @returns {Object<string, number>} the statistics of one head */
  statisticsOf(layer, head) {
    const place = layer * this.heads + head;
    return Object.fromEntries(Object.entries(this.statistics).map(([name, values]) => [name, values[place]]));
  }

  /** @returns {Promise<Float32Array>} `[S, S]` of one head */
  async map(layer, head, signal) {
    const key = `${layer}.${head}`;
    const most = Math.max(2, Math.floor(MAPS_BYTES / (4 * this.size ** 2)));
    const known = this.#maps.get(key);
    if (known) return this.#maps.keep(key, known, most);
    const { tensors } = await attention({ ...this.#body, layers: [layer], heads: [head] }, signal);
    return this.#maps.keep(key, tensors['attention.0'].data.slice(), most);
  }

  /** @returns {Promise<Float32Array>} `[S, S]` */
  async rollout(signal) {
    if (!this.#rollout) {
      const { tensors } = await attention({ ...this.#body, include: ['rollout'] }, signal);
      this.#rollout = tensors['rollout.0'].data.slice();
    }
    return this.#rollout;
  }

  /**
   * Every head's map, some layers at a time, in float16: a short text's in one go and kept.
   *
   * @returns {AsyncGenerator<{layer: number, head: number, bits: Uint16Array}>} `bits` `[S, S]`
   */
  async *everyMap(signal) {
    const layerBytes = 2 * this.heads * this.size ** 2;
    const together = Math.max(1, Math.floor(CHUNK_BYTES / layerBytes));
    for (let first = 0; first < this.layers; first += together) {
      const layers = Array.from({ length: Math.min(together, this.layers - first) }, (_, i) => first + i);
      const all = this.#whole ?? (await this.#chunk(layers, signal));
      if (layers.length === this.layers) this.#whole = all;
      const cells = this.size ** 2;
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

  async #chunk(layers, signal) {
    const { tensors } = await attention({ ...this.#body, layers, dtype: 'float16' }, signal);
    return tensors['attention.0'].data;
  }

  /**
   * What every head gives these tokens to look at, on average over them.
   *
   * @param {number[]} tokens that look
   * @returns {Promise<Float32Array>} `[L, N, S]`
   */
  async lookOf(tokens, signal) {
    const key = tokens.join();
    if (this.#rows.has(key)) return this.#rows.get(key);
    const rows = new Float32Array(this.layers * this.heads * this.size);
    for await (const { layer, head, bits } of this.everyMap(signal)) {
      const start = (layer * this.heads + head) * this.size;
      for (const token of tokens) {
        const row = decode(bits.subarray(token * this.size, (token + 1) * this.size));
        for (let i = 0; i < this.size; i += 1) rows[start + i] += row[i] / tokens.length;
      }
    }
    return this.#rows.keep(key, rows, ROWS);
  }
}

function requestOf({ texts, cut, off }) {
  const body = { inputs: texts.length === 2 ? [texts] : texts, truncate: cut };
  if (off.length) {
    body.ablate = off.map((name) => {
      const [layer, head] = name.split('.').map(Number);
      return { layer, head };
    });
  }
  return body;
}

const readings = new Recent();

/**
 * A reading, the same one when it was asked for a short while ago.
 *
 * @param {Source} source
 * @param {AbortSignal} signal
 * @returns {Promise<Reading>}
 */
export async function open(source, signal) {
  const key = JSON.stringify([source.texts, source.cut, source.off]);
  const reading = readings.get(key) ?? (await Reading.open(source, signal));
  return readings.keep(key, reading, READINGS);
}

/**
 * The embedding's shift with one head switched off, for each head in turn.
 *
 * @param {Reading} reading
 * @returns {AsyncGenerator<{layer: number, head: number, shift: number}>}
 */
export async function* shifts(reading, cut, signal) {
  for (let layer = 0; layer < reading.layers; layer += 1) {
    for (let head = 0; head < reading.heads; head += 1) {
      const body = {
        ...requestOf({ texts: reading.texts, cut, off: [`${layer}.${head}`] }),
        include: ['stats'],
        layers: [0],
        heads: [0],
      };
      const { tensors } = await attention(body, signal);
      yield { layer, head, shift: tensors.pooled_shift.data[0] };
    }
  }
}
