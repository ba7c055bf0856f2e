/**
 * The page's one state: what is asked (`state`), and for every reply the value that names its question.
 *
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {import('../draw/scene.js').Scene} Scene
 * @typedef {{asked: any, reply: any, old: boolean, whole: boolean}} Shown of `shownOf`
 *
 * @typedef {Object} View a way to look at a text; all of it is a function of the store and of one answer
 * @property {string} title
 * @property {(state: State, reading: Reading, store: Store) => Object|null} asks the question beside the
 *   text, plain JSON; null asks nothing
 * @property {(given: {reading: Reading, asked: any, signal: AbortSignal, showPart: (part: any) => void}) =>
 *   Promise<any>} answer its reply holds the reading
 * @property {(store: Store, shown: Shown|null) => import('../core/html.js').Template} draw
 * @property {(shown: Shown) => string} says for those who listen to the page, once all has come
 * @property {(store: Store, shown: Shown) => {name: string, scene: Scene, json: Object}} file
 * @property {(state: State) => boolean} [wantsMaps] whether small maps of every head come with the text
 * @property {(store: Store) => boolean} [ready] whether all that is drawn beside the answer has come
 */

import { info } from '../api/client.js';
import { open } from '../api/reading.js';
import { Recovery } from '../api/recovery.js';
import { singleHeadShifts } from '../api/single-head-shifts.js';
import { Address } from '../core/address.js';
import { errorOf, isPending, shownOf, Slot } from '../core/answers.js';
import { placeOf } from '../core/maps.js';
import { FIRST_TEXT } from '../core/state.js';
import { unitsOf } from '../core/words.js';

/** @param {State} state @returns {import('../api/reading.js').Source} */
export const sourceOf = ({ a, b, cut, off }) => ({ texts: b === null ? [a] : [a, b], cut, off });

/** @param {unknown} a @param {unknown} b */
const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

export class Store {
  #changed = () => this.onChange();
  /** @type {Slot<{}, import('../api/service-info.js').ServiceInfo>} */
  service = new Slot(() => this.#update());
  /** @type {Slot<import('../api/reading.js').Source, Reading>} */
  text = new Slot(() => this.#update());
  /** Heads by the weight from one token, or word, to another. */
  link = /** @type {Slot<any, import('./link-finder.js').Ranking>} */ (new Slot(this.#changed));
  /** The embedding's shift with each head alone switched off. */
  survey = /** @type {Slot<{texts: string[], cut: boolean}, {alone: Float32Array, done: number}>} */ (
    new Slot(this.#changed)
  );
  /** @type {Object<string, Slot<any, any>>} */
  #slots = {};
  /** @type {Map<string, import('./text-field.js').Draft>} */
  drafts = new Map();
  /** Where the focus goes with the next change, a selector. */
  focus = /** @type {string|null} */ (null);
  #said = { text: '', of: /** @type {unknown} */ (null) };
  #seen = '';
  #recovery = new Recovery(
    () => this.#all().map(({ answer }) => errorOf(answer)),
    () => this.retry(),
  );

  /** @param {Object<string, View>} views @param {() => void} onChange told of every change */
  constructor(views, onChange) {
    this.views = views;
    this.onChange = onChange;
    for (const name of Object.keys(views)) this.#slots[name] = new Slot(() => this.#arrived());
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

  /** @returns {View} */
  get view() {
    return this.views[this.state.view];
  }

  /**
   * Change what is asked, and with it what was typed and not yet asked.
   *
   * @param {Partial<State>} patch
   * @param {{replace?: boolean, typing?: boolean, focus?: string}} [options]
   */
  go(patch, { focus, ...options } = {}) {
    const typed = Object.assign({}, ...[...this.drafts.values()].map((draft) => draft.patch()));
    this.focus = focus ?? null;
    this.#said = { text: '', of: null };
    this.address.go({ ...typed, ...patch }, options);
  }

  /** Something of the page itself is another: a draft, the theme. */
  touch() {
    this.onChange();
  }

  /** @param {string} text for those who listen to the page, until something else has come */
  say(text) {
    this.#said = { text, of: this.answer };
    this.onChange();
  }

  /** What those who listen to the page are told. */
  get status() {
    const { answer } = this;
    if (this.#said.text && this.#said.of === answer) return this.#said.text;
    const shown = shownOf(answer);
    return shown?.whole ? this.view.says(shown) : '';
  }

  /**
   * The answer that the view in sight is drawn from; while its text is on its way or failed, it is too.
   *
   * @returns {import('../core/answers.js').Answer<any, any>|null}
   */
  get answer() {
    const text = this.text.answer;
    const slot = this.#slots[this.state.view];
    if (!text || 'reply' in text) return slot.answer;
    if ('error' in text) return text;
    return { asked: text.asked, pending: true, part: null, before: slot.answered };
  }

  /** The text's reading: what is there of it. */
  get reading() {
    const shown = shownOf(this.text.answer);
    return shown && { ...shown, reply: /** @type {Reading} */ (shown.reply) };
  }

  /** Heads by a link, as far as they are of the text that is shown. */
  get ranking() {
    return errorOf(this.text.answer) ? null : shownOf(this.link.answer);
  }

  get busy() {
    return isPending(this.answer);
  }

  /** What can be saved: only what all has come of. @returns {Shown|null} */
  get savable() {
    const shown = shownOf(this.answer);
    return shown?.whole && (this.view.ready?.(this) ?? true) ? shown : null;
  }

  /** What went wrong, first of all with the text. @returns {Error|null} */
  get problem() {
    return (
      [this.text, this.#slots[this.state.view], this.link, this.survey, this.service]
        .map((slot) => errorOf(slot.answer))
        .find(Boolean) ?? null
    );
  }

  /** Asks again what failed; with `anew` also what is being asked. @param {{anew?: boolean}} [options] */
  retry(options) {
    for (const slot of this.#all()) slot.retry(options);
  }

  /** The first text asks its own question until another is asked. @param {Reading} reading @returns {State} */
  seen({ texts, tokens }) {
    const { state } = this;
    if (state.from !== null || state.to !== null || texts.length > 1 || texts[0] !== FIRST_TEXT) return state;
    const [from, to] = ['it', 'animal'].map((token) => tokens.indexOf(token));
    return from >= 0 && to >= 0 ? { ...state, from, to } : state;
  }

  /** The two units that the finder is about. @param {Reading} reading */
  ends(reading) {
    const { from, to, words } = this.seen(reading);
    const units = unitsOf(reading, { words, bare: false });
    return [from, to].map((token) => (token === null ? undefined : units[placeOf(units, token)]));
  }

  /** Switches off each head alone, one after another. */
  measure() {
    const { texts, cut } = sourceOf(this.state);
    const reading = this.reading?.reply;
    if (!reading) return;
    this.survey.ask({ texts, cut }, async (signal, come) => {
      const alone = new Float32Array(reading.layers * reading.heads);
      let done = 0;
      for await (const { layer, head, shift } of singleHeadShifts(reading, cut, signal)) {
        alone[layer * reading.heads + head] = shift;
        done += 1;
        come({ alone, done });
      }
      this.say('Each head measured alone.');
      return { alone, done };
    });
  }

  #all() {
    return [this.service, this.text, this.link, this.survey, ...Object.values(this.#slots)];
  }

  /** Every question that follows from the state is asked, and no other. */
  #update() {
    const { state, view } = this;
    const source = sourceOf(state);
    const slot = this.#slots[state.view];
    if (this.#seen !== state.view) this.#enter(slot, source);
    if (!same(this.survey.answer?.asked, { texts: source.texts, cut: source.cut })) this.survey.clear();
    this.text.ask(source, (signal) => open(source, signal, view.wantsMaps?.(state)));
    const text = this.text.answer;
    if (text && 'reply' in text) {
      const reading = text.reply;
      const asked = view.asks(state, reading, this);
      if (asked) this.#look(slot, { ...source, ...asked }, reading);
      else slot.clear();
      this.#rank(reading, source);
    } else {
      slot.stop();
      this.link.stop();
    }
    this.#arrived();
  }

  /** @param {Slot<any, any>} slot @param {any} asked @param {Reading} reading */
  #look(slot, asked, reading) {
    const { view } = this;
    slot.ask(asked, (signal, showPart) => view.answer({ reading, asked, signal, showPart }));
  }

  /** Another view is looked at: nothing of what it showed of another text is. @param {Slot<any, any>} slot @param {import('../api/reading.js').Source} source */
  #enter(slot, { texts, cut, off }) {
    this.#slots[this.#seen]?.stop();
    this.#seen = this.state.view;
    const before = slot.answered?.asked;
    if (!before || !same([before.texts, before.cut, before.off], [texts, cut, off])) slot.clear();
  }

  /** @param {Reading} reading @param {import('../api/reading.js').Source} source */
  #rank(reading, source) {
    const [first, second] = this.ends(reading);
    if (!first || !second) {
      this.link.clear();
      return;
    }
    this.link.ask({ ...source, from: first.tokens, to: second.tokens }, async (signal) => {
      const rows = await reading.lookOf(first.tokens, signal);
      const weights = Float32Array.from({ length: reading.layers * reading.heads }, (_, i) =>
        second.tokens.reduce((sum, token) => sum + rows[i * reading.size + token], 0),
      );
      return { reading, first, second, weights };
    });
  }

  /** Something came, or failed. */
  #arrived() {
    this.#recovery.watch();
    this.onChange();
  }
}
