/** The state, kept in the browser's address and history. */

import { read, write } from './state.js';

const WRITING_MS = 120;

export class Address {
  /** @type {import('./state.js').State} */
  state = read(location.hash);
  #timer = 0;

  /** @param {() => void} onChange called after every change, also back and forward */
  constructor(onChange) {
    this.onChange = onChange;
    addEventListener('popstate', () => {
      clearTimeout(this.#timer);
      this.state = read(location.hash);
      onChange();
    });
  }

  /**
   * Change the state; everything that is seen follows.
   *
   * @param {Partial<import('./state.js').State>} patch
   * @param {{replace?: boolean}} [options] `replace` adds no step to the browser's history
   */
  go(patch, { replace = false } = {}) {
    const before = write(this.state);
    this.state = { ...this.state, ...patch };
    clearTimeout(this.#timer);
    if (replace) this.#timer = setTimeout(() => this.settle(), WRITING_MS);
    else if (write(this.state) !== before) {
      history.replaceState(null, '', before);
      history.pushState(null, '', write(this.state));
    }
    this.onChange();
  }

  /** Browsers limit how often an address may change, so a slider's is written once it rests. */
  settle() {
    history.replaceState(null, '', write(this.state));
  }
}
