/** The service's routes, as this page uses them. Addresses are relative, so a path prefix works. */

import { parse } from './safetensors.js';

const SAFETENSORS = 'application/vnd.safetensors';
/** Which of several models the page is about, from its own address; the first when null. */
const MODEL = new URLSearchParams(location.search).get('model');

/** What went wrong, in words for a person. */
export class ApiError extends Error {
  /** @param {number} status 0 when there was no answer */
  constructor(status, title, detail, retryAfterSeconds = null) {
    super(detail);
    this.status = status;
    this.title = title;
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, cache: 'no-store', credentials: 'same-origin' });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'No answer', 'The service does not answer. It may be restarting.');
  }
  if (!response.ok) throw await problem(response);
  return response;
}

async function problem(response) {
  const retryAfter = Number(response.headers.get('retry-after')) || null;
  try {
    const { title, detail } = await response.json();
    if (typeof detail === 'string') return new ApiError(response.status, String(title), detail, retryAfter);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
  }
  return new ApiError(response.status, `Error ${response.status}`, 'The service gave no reason.', retryAfter);
}

/**
 * `POST /attention` in its binary form.
 *
 * @param {Object} body as the API says
 * @param {AbortSignal} [signal]
 * @returns {Promise<{tensors: Object<string, import('./safetensors.js').Tensor>,
 *   lists: {layers: number[], heads: number[], tokens: string[][], offsets: number[][][]},
 *   milliseconds: number, bytes: number}>}
 */
export async function attention(body, signal) {
  const response = await request('attention', {
    method: 'POST',
    headers: { accept: SAFETENSORS, 'content-type': 'application/json' },
    body: JSON.stringify(MODEL === null ? body : { ...body, model: MODEL }),
    signal,
  });
  let buffer;
  try {
    buffer = await response.arrayBuffer();
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'Cut short', 'The reply ended too early.');
  }
  const { tensors, metadata } = parse(buffer);
  const lists = {};
  for (const name of ['layers', 'heads', 'tokens', 'offsets']) lists[name] = JSON.parse(metadata[name]);
  const milliseconds = Number(response.headers.get('x-total-time'));
  return { tensors, lists, milliseconds, bytes: buffer.byteLength };
}

/** @param {AbortSignal} [signal] */
export const info = async (signal) => {
  const query = MODEL === null ? '' : `?${new URLSearchParams({ model: MODEL })}`;
  return (await request(`info${query}`, { signal })).json();
};

/** @param {AbortSignal} [signal] */
export const metrics = async (signal) => (await request('metrics', { signal })).text();
