/**
 * Answers with the questions that they answer: a view and its file are made from one such value.
 *
 * @template Q, R
 * @typedef {{asked: Q, reply: R}} Answered
 */
/**
 * @template Q, R
 * @typedef {{asked: Q, pending: true, part: R|null, before: Answered<Q, R>|null}} Pending `part` is what
 *   has come so far; `before` what was answered last, to another question
 */
/**
 * @template Q
 * @typedef {{asked: Q, error: Error, retrying: boolean}} Failed
 */
/**
 * @template Q, R
 * @typedef {Answered<Q, R> | Pending<Q, R> | Failed<Q>} Answer
 */

/**
 * @template Q, R
 * @typedef {{asked: Q, reply: R, old: boolean, whole: boolean}} Shown `old`: answers an earlier question;
 *   `whole`: complete
 */

/**
 * Return what can be shown of an answer: its reply, the part that has come, or the last complete reply.
 *
 * @template Q, R
 * @param {Answer<Q, R>|null} answer
 * @returns {Shown<Q, R>|null}
 */
export function shownOf(answer) {
  if (!answer || 'error' in answer) return null;
  if ('reply' in answer) return { ...answer, old: false, whole: true };
  if (answer.part) return { asked: answer.asked, reply: answer.part, old: false, whole: false };
  return answer.before ? { ...answer.before, old: true, whole: false } : null;
}

/** Error of work that the viewer has ended. */
export class Stopped extends Error {
  constructor() {
    super('Stopped.');
  }
}

/** @param {Answer<unknown, unknown>|null} answer */
export const isPending = (answer) => Boolean(answer && 'pending' in answer);

/** @param {Answer<unknown, unknown>|null} answer @returns {Error|null} */
export const errorOf = (answer) => (answer && 'error' in answer ? answer.error : null);

/**
 * Slot for one question at a time: a new question cancels the work on the old one, and the same question is
 * not asked twice.
 *
 * @template Q, R
 */
export class Slot {
  /** @type {Answer<Q, R>|null} */
  answer = null;
  /** @type {string|null} */
  #key = null;
  /** @type {AbortController|null} */
  #controller = null;
  /** @type {((signal: AbortSignal, come: (part: R) => void, asked: Q) => Promise<R>)|null} */
  #work = null;
  /** Time at which the work began, and its seconds once it has ended. */
  began = 0;
  seconds = /** @type {number|null} */ (null);

  /** @param {() => void} onChange told whenever the answer is another */
  constructor(onChange) {
    this.onChange = onChange;
  }

  /**
   * @param {Q|null} asked plain JSON; null: nothing is asked, and all answers are forgotten
   * @param {(signal: AbortSignal, come: (part: R) => void, asked: Q) => Promise<R>} work `come` shows what has
   *   come so far
   * @returns {Promise<void>} settled when the work has ended
   */
  async ask(asked, work) {
    if (asked === null) return this.clear();
    const key = JSON.stringify(asked);
    if (key === this.#key) return;
    this.#key = key;
    this.#work = work;
    await this.#run(asked, { asked, pending: true, part: null, before: this.answered });
  }

  /**
   * Ask again after an error, which stays visible until the new answer.
   *
   * @param {{anew?: boolean, stopped?: boolean}} [options] `anew`: also what is being asked, as it was with
   *   another key; `stopped`: also what the viewer has ended
   */
  retry({ anew = false, stopped = false } = {}) {
    const { answer } = this;
    if (!answer || 'reply' in answer) return;
    if ('error' in answer && answer.error instanceof Stopped && !stopped) return;
    if ('pending' in answer) {
      if (anew) this.#run(answer.asked, answer);
    } else if (anew || !answer.retrying) this.#run(answer.asked, { ...answer, retrying: true });
  }

  /** Last complete answer. @returns {Answered<Q, R>|null} */
  get answered() {
    const { answer } = this;
    if (answer && 'reply' in answer) return answer;
    return answer && 'pending' in answer ? answer.before : null;
  }

  /** Cancel the work, and keep the last complete answer. */
  stop() {
    if (this.answer && 'reply' in this.answer) return;
    this.#controller?.abort();
    this.#key = null;
    this.answer = this.answered;
    if (this.answer) this.#key = JSON.stringify(this.answer.asked);
  }

  /** End the work: what has come so far is the answer. */
  halt() {
    const { answer } = this;
    if (!answer || !('pending' in answer)) return;
    this.#controller?.abort();
    const { asked, part } = answer;
    this.answer = part ? { asked, reply: part } : { asked, error: new Stopped(), retrying: false };
    this.onChange();
  }

  /** Cancel the work, and forget all answers. */
  clear() {
    this.#controller?.abort();
    this.#key = null;
    this.answer = null;
  }

  /** @param {Q} asked @param {Answer<Q, R>} meanwhile */
  async #run(asked, meanwhile) {
    this.#controller?.abort();
    const controller = new AbortController();
    this.#controller = controller;
    const { signal } = controller;
    const work = this.#work;
    if (!work) return;
    const show = (/** @type {Answer<Q, R>} */ answer) => {
      if (signal.aborted) return;
      this.answer = answer;
      this.onChange();
    };
    this.began = performance.now();
    this.seconds = null;
    show(meanwhile);
    try {
      const come = (/** @type {R} */ part) => show({ asked, pending: true, part, before: this.answered });
      const reply = await work(signal, come, asked);
      this.seconds = (performance.now() - this.began) / 1000;
      show({ asked, reply });
    } catch (error) {
      show({ asked, error: error instanceof Error ? error : new Error(String(error)), retrying: false });
    }
  }
}
