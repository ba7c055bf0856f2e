/**
 * A view, and the slot of its answer.
 *
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {import('../api/reading.js').Source} Source
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('../draw/scene.js').Scene} Scene
 * @typedef {import('./store.js').Store} Store
 * @typedef {import('../core/html.js').Template} Template
 */
/**
 * A way to look at a text: a function of the store and of one answer.
 *
 * @template Q question beside the text
 * @template {{reading: Reading}} R reply
 * @typedef {Object} View
 * @property {string} title
 * @property {(state: State, reading: Reading, store: Store) => Q|null} asks returns the question as plain JSON,
 *   or null to ask nothing
 * @property {(given: {reading: Reading, asked: Source & Q, signal: AbortSignal, showPart: (part: R) => void}) =>
 *   Promise<R>} answer
 * @property {(given: {asked: Source & Q, reply: R, state: State}) => Object<string, Work>} [parts] returns work
 *   on the same question that begins after the answer, one after another; each has a slot of its own, with its
 *   own error
 * @property {(store: Store, shown: Shown<Q, R>|null, parts: Parts) => Template} draw
 * @property {(shown: Shown<Q, R>, parts: Parts, state: State) => string} says returns what screen readers announce of a
 *   complete answer
 * @property {(store: Store, shown: Shown<Q, R>, parts: Parts) => File} file
 * @property {(state: State) => boolean} [wantsMaps] whether small maps of every head come with the text
 * @property {(store: Store) => boolean} [ready] whether everything drawn beside the answer is complete
 */
/**
 * @template Q, R
 * @typedef {import('../core/answers.js').Shown<Source & Q, R>} Shown
 */
/**
 * @typedef {{name: string, scene: Scene, json: Object, texts?: string[]}} File `texts` that it is about, where
 *   they are not the page's
 */
/** @typedef {(signal: AbortSignal, come: (part: any) => void) => Promise<any>} Work */
/** @typedef {Object<string, Slot<unknown, any>>} Parts slots by name, as far as they have begun */
/** @typedef {Pick<Reading, 'texts'|'tokens'|'off'|'model'>} Saved what a file says of its texts */
/** @typedef {import('../core/answers.js').Answer<Source, Reading>} TextAnswer */
/** @typedef {Pick<ViewSlot<{}, {reading: Reading}>, keyof ViewSlot<{}, {reading: Reading}>>} AnyViewSlot */

import { errorOf, isPending, Slot, shownOf } from '../core/answers.js';

/** @param {unknown} a @param {unknown} b */
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/**
 * @template Q
 * @template {{reading: Reading}} R
 */
export class ViewSlot {
  #view;
  /** @type {Slot<Source & Q, R>} */
  #slot;
  #onChange;
  /** @type {Parts} */
  #parts = {};
  #working = false;
  #changes = 0;
  /** State while the view is shown. @type {State|null} */
  #state = null;
  /** Whether the view needs no text of the page. */
  isAlone = false;

  /** @param {View<Q, R>} view @param {() => void} onChange */
  constructor(view, onChange) {
    this.#view = view;
    this.#onChange = () => {
      this.#changes += 1;
      onChange();
    };
    this.#slot = new Slot(() => {
      this.#workOnParts();
      this.#onChange();
    });
    this.title = view.title;
  }

  /** @param {State} state */
  wantsMaps(state) {
    return this.#view.wantsMaps?.(state) ?? false;
  }

  /**
   * Ask the question that follows from the state.
   *
   * @param {Store} store
   * @param {Reading|null} reading null for a view that needs none
   * @param {Source} source
   */
  ask(store, reading, source) {
    if (!reading) return;
    const question = this.#view.asks(store.state, reading, store);
    if (!question) {
      this.#clear();
      return;
    }
    const asked = { ...source, ...question };
    if (!same(asked, this.#slot.answer?.asked)) this.#clearParts();
    this.#state = store.state;
    this.#slot.ask(asked, (signal, showPart) => this.#view.answer({ reading, asked, signal, showPart }));
    this.#workOnParts();
  }

  /** Work on the parts of a complete answer one after another, those that a change of the state adds included. */
  async #workOnParts() {
    const wanted = this.#wanted;
    if (wanted) for (const name in this.#parts) if (!(name in wanted)) this.#parts[name].stop();
    if (this.#working) return;
    this.#working = true;
    for (let next = this.#nextPart(); next; next = this.#nextPart()) {
      this.#parts[next.name] ??= new Slot(this.#onChange);
      await this.#parts[next.name].ask(next.asked, next.work);
    }
    this.#working = false;
  }

  /** Work of all parts of a complete answer; null while there is none. */
  get #wanted() {
    const { answer } = this.#slot;
    if (!this.#state || !answer || !('reply' in answer)) return null;
    return this.#view.parts?.({ ...answer, state: this.#state }) ?? {};
  }

  /** Return the first part that has not begun, or null. */
  #nextPart() {
    const all = this.#wanted ?? {};
    const name = Object.keys(all).find((one) => !this.#parts[one]?.answer);
    return name === undefined ? null : { name, asked: this.#slot.answer?.asked, work: all[name] };
  }

  #clear() {
    this.#slot.clear();
    this.#clearParts();
  }

  #clearParts() {
    for (const slot of Object.values(this.#parts)) slot.clear();
    this.#parts = {};
  }

  /** Forget the answer if it is about another text. @param {Source} source */
  enter({ texts, cut, off }) {
    const before = this.#slot.answered?.asked;
    if (!before || !same([before.texts, before.cut, before.off], [texts, cut, off])) this.#clear();
  }

  stop() {
    this.#state = null;
    this.#slot.stop();
    for (const slot of Object.values(this.#parts)) slot.stop();
  }

  /** End the work on the answer: what has come so far is shown as it is. */
  halt() {
    this.#slot.halt();
  }

  /** @param {{anew?: boolean}} [options] */
  retry(options) {
    for (const slot of [this.#slot, ...Object.values(this.#parts)]) slot.retry(options);
  }

  /** Errors of the answer and of its parts. */
  get errors() {
    return [this.error, ...Object.values(this.#parts).map(({ answer }) => errorOf(answer))];
  }

  get error() {
    return errorOf(this.#slot.answer);
  }

  get isPending() {
    return isPending(this.#slot.answer);
  }

  /** Value that changes with every answer, and with every part of one. @returns {unknown} */
  get version() {
    return this.#changes;
  }

  /** @param {TextAnswer|null} text answer that the view's text comes from */
  #shown(text) {
    if (!text || 'reply' in text) return shownOf(this.#slot.answer);
    const before = 'error' in text ? null : this.#slot.answered;
    return before && { ...before, old: true, whole: false };
  }

  /** Return whether nothing is shown, and whether it answers an earlier question. @param {TextAnswer|null} text */
  shows(text) {
    const shown = this.#shown(text);
    return { isEmpty: shown === null, isOld: shown?.old ?? false };
  }

  /** @param {Store} store @param {TextAnswer|null} text */
  draw(store, text) {
    return this.#view.draw(store, this.#shown(text), this.#parts);
  }

  /** Return what screen readers announce, once the answer is complete. @param {TextAnswer|null} text */
  says(text) {
    const shown = this.#shown(text);
    return shown?.whole && this.#state ? this.#view.says(shown, this.#parts, this.#state) : '';
  }

  /**
   * Return a function that makes the view's file, with the reading that the file is about.
   *
   * @param {Store} store
   * @param {TextAnswer|null} text
   * @returns {{reading: Saved, make: () => File}|null} null until the answer is complete
   */
  savable(store, text) {
    const shown = this.#shown(text);
    if (!shown?.whole || this.#view.ready?.(store) === false) return null;
    return { reading: shown.reply.reading, make: () => this.#view.file(store, shown, this.#parts) };
  }
}

/**
 * Return a function that makes the slot of a view.
 *
 * @template Q
 * @template {{reading: Reading}} R
 * @param {View<Q, R>} view
 * @returns {(onChange: () => void) => AnyViewSlot}
 */
export const slotOf = (view) => (onChange) => new ViewSlot(view, onChange);
