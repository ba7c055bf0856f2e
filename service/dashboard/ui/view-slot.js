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
 * @property {(store: Store, shown: Shown<Q, R>|null) => Template} draw
 * @property {(shown: Shown<Q, R>) => string} says returns what screen readers announce of a complete answer
 * @property {(store: Store, shown: Shown<Q, R>) => File} file
 * @property {(state: State) => boolean} [wantsMaps] whether small maps of every head come with the text
 * @property {(store: Store) => boolean} [ready] whether everything drawn beside the answer is complete
 */
/**
 * @template Q, R
 * @typedef {import('../core/answers.js').Shown<Source & Q, R>} Shown
 */
/** @typedef {{name: string, scene: Scene, json: Object}} File */
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

  /** @param {View<Q, R>} view @param {() => void} onChange */
  constructor(view, onChange) {
    this.#view = view;
    this.#slot = new Slot(onChange);
    this.title = view.title;
  }

  /** @param {State} state */
  wantsMaps(state) {
    return this.#view.wantsMaps?.(state) ?? false;
  }

  /** Ask the question that follows from the state. @param {Store} store @param {Reading} reading @param {Source} source */
  ask(store, reading, source) {
    const question = this.#view.asks(store.state, reading, store);
    if (!question) {
      this.#slot.clear();
      return;
    }
    const asked = { ...source, ...question };
    this.#slot.ask(asked, (signal, showPart) => this.#view.answer({ reading, asked, signal, showPart }));
  }

  /** Forget the answer if it is about another text. @param {Source} source */
  enter({ texts, cut, off }) {
    const before = this.#slot.answered?.asked;
    if (!before || !same([before.texts, before.cut, before.off], [texts, cut, off])) this.#slot.clear();
  }

  stop() {
    this.#slot.stop();
  }

  /** @param {{anew?: boolean}} [options] */
  retry(options) {
    this.#slot.retry(options);
  }

  get error() {
    return errorOf(this.#slot.answer);
  }

  get isPending() {
    return isPending(this.#slot.answer);
  }

  /** Value that changes with every answer. @returns {unknown} */
  get version() {
    return this.#slot.answer;
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
    return this.#view.draw(store, this.#shown(text));
  }

  /** Return what screen readers announce, once the answer is complete. @param {TextAnswer|null} text */
  says(text) {
    const shown = this.#shown(text);
    return shown?.whole ? this.#view.says(shown) : '';
  }

  /**
   * Return a function that makes the view's file, with the reading that the file is about.
   *
   * @param {Store} store
   * @param {TextAnswer|null} text
   * @returns {{reading: Reading, make: () => File}|null} null until the answer is complete
   */
  savable(store, text) {
    const shown = this.#shown(text);
    if (!shown?.whole || this.#view.ready?.(store) === false) return null;
    return { reading: shown.reply.reading, make: () => this.#view.file(store, shown) };
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
