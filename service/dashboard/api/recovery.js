import { isReady } from './client.js';
import { isPassing } from './errors.js';

const AGAIN_MS = 1500;

/** Retries requests that failed because the service was away, once it is ready. */
export class Recovery {
  #timer = 0;

  /**
   * @param {() => (Error|null)[]} errors there are now
   * @param {() => void} retry
   */
  constructor(errors, retry) {
    this.errors = errors;
    this.retry = retry;
  }

  /** Poll the service while there is an error that ends when it is available. */
  watch() {
    if (!this.errors().some(isPassing) || this.#timer) return;
    this.#timer = window.setTimeout(async () => {
      const ready = await isReady();
      this.#timer = 0;
      if (ready) this.retry();
      this.watch();
    }, AGAIN_MS);
  }
}
