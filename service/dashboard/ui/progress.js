/** Progress of a comparison of all heads, with the time that is left and a way to stop. */

import { html, nothing } from '../core/html.js';
import '../elements/wait-bar.js';

/** @typedef {{done: number, began: number}} Progress number of heads that are compared, and the time of the start */

/**
 * @param {string} label
 * @param {Progress} progress
 * @param {number} count of all heads
 * @param {() => void} stop
 */
export function progressBar(label, { done, began }, count, stop) {
  return html`<div class="controls"><wait-bar .data=${{ label, began, done: done / count }}></wait-bar>
    <span class="says">${done} of ${count}</span>
    <button type="button" class="quiet" @click=${stop}>Stop</button></div>`;
}

/**
 * Progress of the shown comparison, or a note that it was stopped.
 *
 * @param {import('./store.js').Store} store
 * @param {{whole: boolean, old: boolean, reply: Progress & {reading: import('../api/reading.js').Reading}}} shown
 */
export function comparing(store, { whole, old, reply }) {
  const count = reply.reading.layers * reply.reading.heads;
  if (old || reply.done >= count) return nothing;
  return whole
    ? html`<p class="says">Stopped after ${reply.done} of ${count} heads.</p>`
    : progressBar('Heads compared', reply, count, () => store.view.halt());
}
