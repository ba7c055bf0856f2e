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
  /** @type {((signal: AbortSignal, come: (part: R) => void) => Promise<R>)|null} */
  #work = null;

  /** @param {() => void} onChange told whenever the answer is another */
  constructor(onChange) {
    this.onChange = onChange;
  }

  /**
   * @param {Q} asked plain JSON
   * @param {(signal: AbortSignal, come: (part: R) => void) => Promise<R>} work `come` shows what has
   *   come so far
   */
  ask(asked, work) {
    const key = JSON.stringify(asked);
    if (key === this.#key) return;
    this.#key = key;
    this.#work = work;
    this.#run(asked, { asked, pending: true, part: null, before: this.answered });
  }

  /**
   * Ask again after an error, which stays visible until the new answer.
   *
   * @param {{anew?: boolean}} [options] `anew`: also what is being asked, as it was with another key
   */
  retry({ anew = false } = {}) {
    const { answer } = this;
    if (!answer || 'reply' in answer) return;
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
    show(meanwhile);
    try {
      const come = (/** @type {R} */ part) => show({ asked, pending: true, part, before: this.answered });
      const reply = await work(signal, come);
      show({ asked, reply });
    } catch (error) {
      show({ asked, error: error instanceof Error ? error : new Error(String(error)), retrying: false });
    }
  }
}
