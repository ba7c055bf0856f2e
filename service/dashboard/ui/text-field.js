/** A field for a text. Typed text is committed after a pause, or at once by Enter or by leaving the field. */

import { html, live } from '../core/html.js';

const TYPING_MS = 350;

/** @typedef {{text: string, timer: number, patch: () => Partial<import('../core/state.js').State>}} Draft */

/**
 * @param {import('./store.js').Store} store
 * @param {{id: string, label: string, value: string, patch: (text: string) => Partial<import('../core/state.js').State>,
 *   lines?: boolean}} field `lines`: Enter begins another line
 */
export function textField(store, { id, label, value, patch, lines = false }) {
  const { drafts } = store;
  const commit = () => {
    const draft = drafts.get(id);
    if (!draft) return;
    clearTimeout(draft.timer);
    drafts.delete(id);
    store.go(patch(draft.text), { typing: true });
  };
  const settle = () => {
    commit();
    store.address.settle();
  };
  const input = (/** @type {{target: HTMLTextAreaElement}} */ { target }) => {
    clearTimeout(drafts.get(id)?.timer);
    const timer = window.setTimeout(commit, TYPING_MS);
    drafts.set(id, { text: target.value, timer, patch: () => patch(target.value) });
  };
  const key = (/** @type {KeyboardEvent} */ event) => {
    if (lines || event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    settle();
  };
  return html`<div class="field"><label for=${id}>${label}</label>
    <textarea id=${id} rows=${lines ? 5 : 2} dir="auto" spellcheck="false" autocomplete="off"
      .value=${live(drafts.get(id)?.text ?? value)} @input=${input} @keydown=${key} @change=${settle}></textarea></div>`;
}
