import { isReady } from './client.js';
import { ApiError } from './errors.js';

const AGAIN_MS = 1500;

/** What failed because the service was away is asked again as soon as it is ready. */
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

  /** Looks at the service again and again while an error is one that passes. */
  watch() {
    const passes = this.errors().some((error) => error instanceof ApiError && error.passes);
    if (!passes || this.#timer) return;
    this.#timer = window.setTimeout(async () => {
      const ready = await isReady();
      this.#timer = 0;
      if (ready) this.retry();
      this.watch();
    }, AGAIN_MS);
  }
}
