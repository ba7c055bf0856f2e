/** The state, kept in the browser's address and history. */

import { read, write } from './state.js';

const WRITING_MS = 120;
/** A text that has rested for so long is a step in the history; what is typed sooner replaces it. */
const SETTLED_MS = 1000;

/** @typedef {import('./state.js').State} State */

export class Address {
  state = read(location.hash);
  #timer = 0;
  /** When a text was last changed by typing; nothing has been typed since it settled when null. */
  #typed = /** @type {number|null} */ (null);

  /** @param {() => void} onChange called after every change, also back and forward */
  constructor(onChange) {
    this.onChange = onChange;
    addEventListener('popstate', () => {
      clearTimeout(this.#timer);
      this.#typed = null;
      this.state = read(location.hash);
      onChange();
    });
  }

  /**
   * Change the state; everything that is seen follows.
   *
   * @param {Partial<State>} patch
   * @param {{replace?: boolean, typing?: boolean}} [options] `replace` adds no step to the browser's
   *   history, `typing` one a text that is settled
   */
  go(patch, { replace = false, typing = false } = {}) {
    const before = write(this.state);
    this.state = { ...this.state, ...patch };
    const now = performance.now();
    const same = typing && this.#typed !== null && now - this.#typed < SETTLED_MS;
    this.#typed = typing ? now : replace ? this.#typed : null;
    clearTimeout(this.#timer);
    if (replace || same) this.#timer = setTimeout(() => this.write(), WRITING_MS);
    else if (write(this.state) !== before) {
      history.replaceState(null, '', before);
      history.pushState(null, '', write(this.state));
    }
    this.onChange();
  }

  /** What was typed is settled. */
  settle() {
    this.#typed = null;
  }

  /** Browsers limit how often an address may change, so a slider's is written once it rests. */
  write() {
    clearTimeout(this.#timer);
    history.replaceState(null, '', write(this.state));
  }
}
