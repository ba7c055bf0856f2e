/**
 * The page's state, and an answer for each question that follows from it.
 *
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {import('../api/reading.js').Source} Source
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('./modality.js').PicturePage} PicturePage
 * @typedef {import('../core/state.js').ViewName} ViewName
 * @typedef {import('./view-slot.js').AnyViewSlot} AnyViewSlot
 */

import { info, modelNames, predict } from '../api/client.js';
import { singleHeadShifts } from '../api/compared-heads.js';
import { open } from '../api/reading.js';
import { taskOf } from '../api/service-info.js';
import { Recovery } from '../api/recovery.js';
import { Address } from '../core/address.js';
import { errorOf, isPending, Slot, shownOf } from '../core/answers.js';
import { placeOf } from '../core/maps.js';
import { FIRST_TEXT, VIEWS, WITH_FINDER } from '../core/state.js';
import { unitsOf } from '../core/words.js';
import { Modality } from './modality.js';

/** @param {unknown} a @param {unknown} b */
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export class Store {
  #changed = () => this.onChange();
  /** @type {Slot<{}, import('../api/service-info.js').ServiceInfo>} */
  service = new Slot(() => this.#update());
  /** Names of the models that a request can choose. @type {Slot<{}, string[]>} */
  modelNames = new Slot(this.#changed);
  /** States of these models when their list was opened. @type {Slot<{at: number}, import('../api/client.js').ModelState[]>} */
  modelStates = new Slot(this.#changed);
  /** @type {Slot<Source, Reading>} */
  text = new Slot(() => {
    // a model that was loaded for the text can be described now
    if (this.text.answer && 'reply' in this.text.answer) this.service.retry();
    this.#update();
  });
  /** Labels of the text by a classifier, or the score of a pair by a cross-encoder. @type {Slot<{texts: string[], cut: boolean}, {label: string, score: number}[]>} */
  score = new Slot(this.#changed);
  /** Heads by the weight from one token, or word, to another. */
  link = /** @type {Slot<Source & {from: number[], to: number[]}, import('./link-finder.js').Ranking>} */ (
    new Slot(this.#changed)
  );
  /** Shifts by single heads. @type {Slot<{texts: string[], cut: boolean}, import('../api/compared-heads.js').Shifts>} */
  headShifts = new Slot(this.#changed);
  /** @type {Map<string, import('./text-field.js').Draft>} */
  drafts = new Map();
  /** Selector of the element that gets the focus with the next change. */
  focus = /** @type {string|null} */ (null);
  /** Whether the finder shows the words of the text; null until somebody chooses. */
  picking = /** @type {boolean|null} */ (null);
  /** Second text of the pair that was switched off last. */
  #second = '';
  /** What an address named that the model has not. */
  corrected = '';
  #announced = { text: '', version: /** @type {unknown} */ (null) };
  /** View that was shown last. */
  #entered = /** @type {AnyViewSlot|null} */ (null);
  #recovery = new Recovery(
    () => [
      ...this.#slots().map(({ answer }) => errorOf(answer)),
      ...this.#views().flatMap(({ errors }) => errors),
    ],
    () => this.retry(),
  );

  /**
   * @param {Record<ViewName, (onChange: () => void) => AnyViewSlot>} views
   * @param {() => void} onChange called after every change
   * @param {(store: Store) => Promise<PicturePage>} loadPictures
   */
  constructor(views, onChange, loadPictures) {
    this.onChange = onChange;
    this.modality = new Modality(this, loadPictures, () => this.#update());
    const slots = VIEWS.map((name) => [name, views[name](this.arrived)]);
    this.views = /** @type {Record<ViewName, AnyViewSlot>} */ (Object.fromEntries(slots));
    this.address = new Address(() => {
      for (const { timer } of this.drafts.values()) clearTimeout(timer);
      this.drafts.clear();
      this.#update();
    });
  }

  begin() {
    this.service.ask({}, info);
    this.#update();
  }

  /** Facts about the service, once they are known. */
  get info() {
    return this.service.answered?.reply;
  }

  /** @returns {State} */
  get state() {
    return this.address.state;
  }

  /** View that is shown. */
  get view() {
    const { views } = this.modality;
    return views[this.state.view] ?? views.heads;
  }

  /**
   * Change the state, together with text that was typed and not yet committed.
   *
   * @param {Partial<State>} patch
   * @param {{replace?: boolean, typing?: boolean, focus?: string}} [options]
   */
  go(patch, { focus, ...options } = {}) {
    /** @type {Partial<State>} */
    const typed = {};
    for (const draft of this.drafts.values()) Object.assign(typed, draft.patch());
    this.focus = focus ?? null;
    this.corrected = '';
    this.#announced = { text: '', version: null };
    this.address.go({ ...typed, ...patch }, options);
  }

  /** Return the second text of a pair that is switched on, or null. @param {boolean} isPair */
  paired(isPair) {
    this.#second = this.state.b ?? this.#second;
    return { b: isPair ? this.#second : null };
  }

  /** Draw again: a draft or the theme has changed. */
  redraw() {
    this.onChange();
  }

  /** Announce a text to screen readers until the next answer. @param {string} text */
  announce(text) {
    this.#announced = { text, version: this.#version };
    this.onChange();
  }

  /** Announced text that still holds. */
  get announced() {
    return this.#announced.version === this.#version ? this.#announced.text : '';
  }

  /** Text that screen readers announce. */
  get status() {
    return this.announced || this.view.says(this.text.answer);
  }

  /** Value that changes with every answer to the text or the view. */
  get #version() {
    return this.#isTextComplete ? this.view.version : this.text.answer;
  }

  get #isTextComplete() {
    return this.view.isAlone || !this.text.answer || 'reply' in this.text.answer;
  }

  /** Error of the text or, once it is complete, of the view. @returns {Error|null} */
  get error() {
    return this.#isTextComplete ? this.view.error : errorOf(this.text.answer);
  }

  /** What is known of the text. */
  get reading() {
    return shownOf(this.text.answer);
  }

  /** Heads by a link, while their text is shown. */
  get ranking() {
    return errorOf(this.text.answer) ? null : shownOf(this.link.answer);
  }

  /** Whether the view waits for its answer or its text. */
  get busy() {
    return this.#isTextComplete ? this.view.isPending : isPending(this.text.answer);
  }

  /** File of the view; null until its answer is complete. */
  get savable() {
    return this.view.savable(this, this.text.answer);
  }

  /** First error of the page; an error of the text comes first. @returns {Error|null} */
  get problem() {
    const others = [this.link, this.headShifts, this.service, this.score].map(({ answer }) =>
      errorOf(answer),
    );
    return errorOf(this.text.answer) ?? this.view.error ?? others.find(Boolean) ?? null;
  }

  /** Ask again what failed; with `anew` also what is pending. @param {{anew?: boolean}} [options] */
  retry(options) {
    for (const slot of [...this.#slots(), ...this.#views()]) slot.retry(options);
  }

  /** Return the state, with the link of the first text while no other is chosen. @param {Reading} reading @returns {State} */
  withFirstLink({ texts, tokens }) {
    const { state } = this;
    if (state.from !== null || state.to !== null || texts.length > 1 || texts[0] !== FIRST_TEXT) return state;
    const [from, to] = ['it', 'animal'].map((token) => tokens.indexOf(token));
    return from >= 0 && to >= 0 ? { ...state, from, to } : state;
  }

  /** Return the two units of the link finder. @param {Reading} reading */
  linkUnits(reading) {
    const { pictures } = this.modality;
    if (pictures) return pictures.linkUnits(reading);
    const { from, to, words } = this.withFirstLink(reading);
    const units = unitsOf(reading, { words, bare: false });
    return [from, to].map((token) => (token === null ? undefined : units[placeOf(units, token)]));
  }

  /** Measure the shift of the embedding with each head alone switched off. */
  measure() {
    const { source } = this.modality;
    const reading = this.reading?.reply;
    if (!reading || !source) return;
    const { texts, cut } = source;
    this.headShifts.ask({ texts, cut }, async (signal, showPart) => {
      const shifts = await singleHeadShifts(reading, cut, signal, showPart);
      this.announce('Each head measured alone.');
      return shifts;
    });
  }

  /** Slots beside those of the views. */
  #slots() {
    const { page } = this.modality;
    return [this.service, this.modelNames, this.text, this.link, this.headShifts, this.score, page];
  }

  #views() {
    return Object.values(this.modality.views);
  }

  /** Ask the questions that follow from the state, and end the work on all others. */
  #update() {
    if (this.modality.update()) for (const slot of [this.text, this.link, this.score]) slot.clear();
    const { state, view } = this;
    const { source, pictures } = this.modality;
    if (!source) return this.arrived();
    if (this.#entered !== view) this.#enter(source);
    if (!same(this.headShifts.answer?.asked, { texts: source.texts, cut: source.cut }))
      this.headShifts.clear();
    if (view.isAlone) for (const slot of [this.text, this.link, this.score]) slot.stop();
    else this.text.ask(source, (signal) => (pictures?.open ?? open)(source, signal, view.wantsMaps(state)));
    const text = this.text.answer;
    if (text && 'reply' in text && this.#correct(text.reply)) return;
    if (view.isAlone) view.ask(this, null, source);
    else if (text && 'reply' in text) {
      this.#scoreText(source);
      view.ask(this, text.reply, source);
      if (WITH_FINDER.includes(state.view)) this.#rank(text.reply, source);
      else this.link.stop();
    } else {
      view.stop();
      this.link.stop();
    }
    this.arrived();
  }

  /**
   * Put a head that the model has into the address, and say so, in place of another one.
   *
   * @param {Reading} reading
   * @returns {boolean} whether the address has changed, and with it the questions
   */
  #correct(reading) {
    const { layer, head } = this.state;
    const place = reading.place({ layer, head });
    if (!reading.layers || same(place, { layer, head })) return false;
    this.corrected = `The address names layer ${layer} head ${head}. This model has layers 0 to ${reading.layers - 1}, and heads 0 to ${reading.heads - 1} in each: layer ${place.layer} head ${place.head} is shown.`;
    this.address.go(place, { replace: true });
    return true;
  }

  /** Stop the view that was shown, and forget what the new one has of another text. @param {Source} source */
  #enter(source) {
    this.#entered?.stop();
    this.#entered = this.view;
    this.view.enter(source);
  }

  /** Ask for the score of a pair by a cross-encoder, or the labels by a classifier. @param {Source} source */
  #scoreText({ texts, cut }) {
    const task = taskOf(this.info);
    const isScored = task === 'classifier' || (task === 'reranker' && texts.length === 2);
    this.score.ask(isScored ? { texts, cut } : null, (signal) => predict(texts, cut, signal));
  }

  /** Ask for the heads by the chosen link. @param {Reading} reading @param {Source} source */
  #rank(reading, source) {
    const [first, second] = this.linkUnits(reading);
    if (!first || !second) {
      this.link.clear();
      return;
    }
    this.link.ask({ ...source, from: first.tokens, to: second.tokens }, async (signal) => {
      const rows = await reading.attentionFrom(first.tokens, signal);
      const weights = Float32Array.from({ length: reading.layers * reading.heads }, (_, i) =>
        second.tokens.reduce((sum, token) => sum + rows[i * reading.size + token], 0),
      );
      return { reading, first, second, weights };
    });
  }

  /** Draw an answer or an error that has arrived. */
  arrived = () => {
    this.#recovery.watch();
    // the first view does not wait for the list of models
    if (!this.busy && (this.info || this.error)) this.modelNames.ask({}, modelNames);
    this.onChange();
  };
}
