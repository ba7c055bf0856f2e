/** Runs work once for all that wait for it, and cancels it when nobody waits any more. */
export class SharedWork {
  /** @type {Map<string, {promise: Promise<any>, controller: AbortController, waiting: number}>} */
  #running = new Map();

  /**
   * @template T
   * @param {string} key what is worked on
   * @param {AbortSignal} signal of the one who waits
   * @param {(signal: AbortSignal) => Promise<T>} start
   * @returns {Promise<T>}
   */
  async wait(key, signal, start) {
    signal.throwIfAborted();
    const job = this.#running.get(key) ?? this.#begin(key, start);
    job.waiting += 1;
    const leave = () => {
      job.waiting -= 1;
      if (job.waiting > 0) return;
      if (this.#running.get(key) === job) this.#running.delete(key);
      job.controller.abort();
    };
    signal.addEventListener('abort', leave, { once: true });
    try {
      return await job.promise;
    } finally {
      signal.removeEventListener('abort', leave);
    }
  }

  /** @template T @param {string} key @param {(signal: AbortSignal) => Promise<T>} start */
  #begin(key, start) {
    const controller = new AbortController();
    const job = { promise: start(controller.signal), controller, waiting: 0 };
    this.#running.set(key, job);
    const done = () => {
      if (this.#running.get(key) === job) this.#running.delete(key);
    };
    job.promise.then(done, done);
    return job;
  }
}
