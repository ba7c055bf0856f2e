/** Requests to the routes of the service. Addresses are relative, so that a path prefix works. */

import { ApiError, isAbort } from './errors.js';
import { inputOf, isPicture } from '../core/held-pictures.js';
import { parse } from '../core/safetensors.js';

const LISTS = [
  'layers',
  'heads',
  'tokens',
  'offsets',
  'target_tokens',
  'target_offsets',
  'grid',
  'size',
  'crop',
];
const SAFETENSORS = 'application/vnd.safetensors';
const KEY = 'headscope-key';
/** Name of the page's model, from the page's address; null for the first model. */
export const MODEL = new URLSearchParams(location.search).get('model');

/**
 * @typedef {Object} Lists
 * @property {number[]} layers
 * @property {number[]} heads
 * @property {string[][]} tokens
 * @property {number[][][]} offsets
 * @property {string[][]} [target_tokens]
 * @property {number[][][]} [target_offsets]
 * @property {number[][]} [grid] rows and columns of each picture
 * @property {number[][]} [size] width and height
 * @property {number[][]} [crop] left, top, right and bottom of what the model sees
 */
/**
 * @typedef {Object} BinaryReply `layers` and `heads` of /attention alone
 * @property {Object<string, import('../core/safetensors.js').Tensor>} tensors
 * @property {Lists} lists
 * @property {string} model
 * @property {number} milliseconds
 * @property {Object<string, number>} warnings number of texts, by kind
 */
/**
 * @typedef {Object} ModelState
 * @property {string} name
 * @property {{version: string, state: string, reason: string|null}[]} versions
 * @property {string} [target] model of an alias
 */

/** Add the page's model to a body that does not name another. @param {Object} body */
const chosen = (body) => (MODEL === null ? body : { model: MODEL, ...body });

/** API key, kept until the tab is closed. */
export const key = {
  get: () => stored((storage) => storage.getItem(KEY)),
  /** @param {string} value */
  set: (value) => stored((storage) => storage.setItem(KEY, value)),
};

/** @template T @param {(storage: Storage) => T} use */
function stored(use) {
  try {
    return use(sessionStorage);
  } catch {
    return null;
  }
}

/** @param {string} path @param {RequestInit} options */
async function request(path, options) {
  const known = key.get();
  // it keeps the browser's own dialog away: this page asks for a key itself
  const asked = { 'x-requested-with': 'XMLHttpRequest', ...options.headers };
  const headers = { ...asked, ...(known ? { authorization: `Bearer ${known}` } : {}) };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: 'no-store', credentials: 'same-origin' });
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError(0, 'No answer', 'The service does not answer. It may be restarting.');
  }
  if (!response.ok) throw Object.assign(await problem(response), { keyed: known !== null });
  return response;
}

/** @param {Response} response */
async function problem(response) {
  const retryAfter = Number(response.headers.get('retry-after')) || null;
  try {
    const { title, detail } = await response.json();
    if (typeof detail === 'string') return new ApiError(response.status, String(title), detail, retryAfter);
  } catch (error) {
    if (isAbort(error)) throw error;
  }
  return new ApiError(response.status, `Error ${response.status}`, 'The service gave no reason.', retryAfter);
}

/**
 * Call `POST /attention` in its binary form.
 *
 * @param {Object} body as the API says
 * @param {AbortSignal} signal
 */
export const attention = (body, signal) => binary('attention', body, signal);

/**
 * Call `POST /encode` in its binary form, for one hidden state of each token.
 *
 * @param {Object} body as the API says, with its `layer`
 * @param {AbortSignal} signal
 */
export const tokenVectors = (body, signal) => binary('encode', { ...body, outputs: ['tokens'] }, signal);

/** @param {string} path @param {Object} body @param {AbortSignal} signal @returns {Promise<BinaryReply>} */
async function binary(path, body, signal) {
  const response = await post(path, body, signal, SAFETENSORS);
  let buffer;
  try {
    buffer = await response.arrayBuffer();
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError(0, 'Cut short', 'The reply ended too early.');
  }
  const { tensors, metadata } = parse(buffer);
  const lists = /** @type {any} */ ({});
  for (const name of LISTS) if (name in metadata) lists[name] = JSON.parse(metadata[name]);
  const milliseconds = Number(response.headers.get('x-total-time'));
  const warnings = JSON.parse(metadata.warnings ?? '{}');
  return { tensors, lists, model: metadata.model, milliseconds, warnings };
}

/**
 * Call `POST /explain` with one pair.
 *
 * @param {Object} body
 * @param {AbortSignal} signal
 * @returns {Promise<any>} its result, with the `warnings` of the reply
 */
export async function explain(body, signal) {
  const { results, warnings = {} } = await json('explain', body, signal);
  return { ...results[0], warnings };
}

/**
 * Call `POST /predict` with one text, pair or picture.
 *
 * @param {string[]} texts
 * @param {boolean} truncate
 * @param {AbortSignal} signal
 * @returns {Promise<{label: string, score: number}[]>} labels, the largest score first
 */
export const predict = async (texts, truncate, signal) =>
  (
    await json('predict', { inputs: isPicture(texts[0]) ? texts.map(inputOf) : [texts], truncate }, signal)
  )[0];

/**
 * Call `POST /attention/scores` with one token of one text.
 *
 * @param {Object} body
 * @param {AbortSignal} signal
 * @returns {Promise<import('./head-scores.js').HeadScores>}
 */
export async function headScores(body, signal) {
  const { scale, results } = await json('attention/scores', body, signal);
  const [{ query_vectors: queries, key_vectors: keys, scores, weights }] = results;
  return { query: queries[0], keys, scores: scores[0], weights: weights[0], scale };
}

/**
 * Call `POST /encode` for one pooled vector a text.
 *
 * @param {Object} body
 * @param {AbortSignal} signal
 * @returns {Promise<number[][]>}
 */
export const encode = async (body, signal) =>
  (await json('encode', body, signal)).results.map((/** @type {{pooled: number[]}} */ { pooled }) => pooled);

/**
 * Call `POST /rank`.
 *
 * @param {Object} body
 * @param {AbortSignal} signal
 * @returns {Promise<any>}
 */
export const rank = (body, signal) => json('rank', body, signal);

/**
 * Call `POST /tokenize`.
 *
 * @param {Object} body
 * @param {AbortSignal} signal
 * @returns {Promise<{id: number, text: string}[][]>} tokens of each text
 */
export const tokenize = (body, signal) => json('tokenize', body, signal);

/**
 * Call `GET /vocabulary`.
 *
 * @param {number[]} indices
 * @param {AbortSignal} signal
 * @returns {Promise<string[]>} token of each index
 */
export async function vocabulary(indices, signal) {
  const query = new URLSearchParams(indices.map((index) => ['index', String(index)]));
  if (MODEL !== null) query.set('model', MODEL);
  return (await request(`vocabulary?${query}`, { signal })).json();
}

/** @param {string} path @param {Object} body @param {AbortSignal} signal */
const json = async (path, body, signal) => (await post(path, body, signal)).json();

/** @param {string} path @param {Object} body @param {AbortSignal} signal @param {string} [accept] */
const post = (path, body, signal, accept = '*/*') =>
  request(path, {
    method: 'POST',
    headers: { accept, 'content-type': 'application/json' },
    body: JSON.stringify(chosen(body)),
    signal,
  });

/** @param {AbortSignal} signal @returns {Promise<import('./service-info.js').ServiceInfo>} */
export async function info(signal) {
  const query = MODEL === null ? '' : `?${new URLSearchParams({ model: MODEL })}`;
  const [known, all] = await Promise.all(
    [...new Set([`info${query}`, 'info'])].map(async (path) => (await request(path, { signal })).json()),
  );
  const { models = [known] } = all ?? known;
  return {
    ...known,
    models: models.map((/** @type {import('./service-info.js').ServiceInfo} */ { model_id }) => model_id),
  };
}

/** Return the names of the models that a request can choose, aliases among them. @param {AbortSignal} signal @returns {Promise<string[]>} */
export async function modelNames(signal) {
  const { data } = await (await request('v1/models', { signal })).json();
  return data.map((/** @type {{id: string}} */ { id }) => id);
}

/**
 * Return the state of each version of a model, or the target of an alias.
 *
 * @param {string} name
 * @param {AbortSignal} signal
 * @returns {Promise<ModelState>}
 */
export async function modelState(name, signal) {
  const path = name.split('/').map(encodeURIComponent).join('/');
  const { versions, target } = await (await request(`models/${path}`, { signal })).json();
  return { name, versions, target };
}

/** @param {AbortSignal} signal */
export const metrics = async (signal) => (await request('metrics', { signal })).text();

/** Return the state of the service: ready, or degraded. @param {AbortSignal} signal @returns {Promise<string>} */
export const health = async (signal) => (await (await request('health/ready', { signal })).json()).status;

/** Return whether the service is ready for requests. */
export async function isReady() {
  try {
    return (await fetch('health/ready', { cache: 'no-store' })).ok;
  } catch {
    return false;
  }
}
