/** At most one piece of work at a time: new work ends the old, the same work is not begun twice. */
export class Latest {
  #key = null;
  #controller = null;
  #report;

  /** @param {(error: Error) => void} report is told of every failure but an abort */
  constructor(report) {
    this.#report = report;
  }

  /**
   * @param {string} key what is asked for
   * @param {(signal: AbortSignal) => Promise<void>} work
   * @returns {Promise<void>} never rejects
   */
  async run(key, work) {
    if (key === this.#key) return;
    this.stop();
    this.#key = key;
    const controller = new AbortController();
    this.#controller = controller;
    try {
      await work(controller.signal);
    } catch (error) {
      if (controller.signal.aborted) return;
      this.#key = null;
      this.#report(error);
    }
  }

  stop() {
    this.#controller?.abort();
    this.#controller = null;
    this.#key = null;
  }
}
