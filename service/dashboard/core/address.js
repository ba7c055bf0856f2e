/** The state in the browser's address and history. */

import { read, write } from './state.js';

const WRITING_MS = 120;
/** Time after which typed text becomes a step in the history; sooner changes replace it. */
const SETTLED_MS = 1000;

/** @typedef {import('./state.js').State} State */

export class Address {
  state = read(location.hash);
  #timer = 0;
  /** Time of the last change by typing; null once the text has settled. */
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
   * Change the state, and write it to the address.
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

  /** Make the next change by typing a new step in the history. */
  settle() {
    this.#typed = null;
  }

  /**
   * Write the state now. Browsers limit how often an address may change, so a slider's value is written with
   * a delay.
   */
  write() {
    clearTimeout(this.#timer);
    history.replaceState(null, '', write(this.state));
  }
}
