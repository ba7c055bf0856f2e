import { isReady } from './client.js';
import { isPassing, waitOf } from './errors.js';

const AGAIN_MS = 1500;

/** Retries requests that failed because the service was away, once it is ready, or busy, once it has room. */
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

  /** Poll the service while there is an error that ends when it is available, or wait as long as it asks for. */
  watch() {
    if (this.#timer) return;
    const errors = this.errors();
    const isAway = errors.some(isPassing);
    const waits = errors.flatMap((error) => waitOf(error) ?? []);
    if (!isAway && !waits.length) return;
    this.#timer = window.setTimeout(
      async () => {
        const ready = !isAway || (await isReady());
        this.#timer = 0;
        if (ready) this.retry();
        this.watch();
      },
      isAway ? AGAIN_MS : Math.max(...waits),
    );
  }
}
