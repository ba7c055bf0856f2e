/**
 * Whether the page shows texts or pictures. The script for pictures is loaded once it is known that the model
 * reads them.
 *
 * @typedef {import('../api/reading.js').Source} Source
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('../core/state.js').ViewName} ViewName
 * @typedef {import('./store.js').Store} Store
 * @typedef {import('./view-slot.js').AnyViewSlot} AnyViewSlot
 * @typedef {Partial<Record<ViewName, AnyViewSlot>> & {heads: AnyViewSlot}} Views
 */
/**
 * @typedef {Object} PicturePage
 * @property {Views} views
 * @property {(state: State) => Source|null} source null until a picture is chosen
 * @property {typeof import('../api/reading.js').open} open
 * @property {(reading: import('../api/reading.js').Reading) => (import('../core/words.js').Unit|undefined)[]} linkUnits
 * @property {(store: Store) => import('../core/html.js').Template} top what stands above the tabs
 */

import { readsPictures } from '../api/service-info.js';
import { Slot } from '../core/answers.js';

/** Whether the service sent the page of a model for pictures, which is known before `/info`. */
const EXPECTED = document.documentElement.dataset.reads === 'pictures';

/** @param {State} state @returns {Source} */
export const sourceOf = ({ a, b, cut, off }) => ({ texts: b === null ? [a] : [a, b], cut, off });

export class Modality {
  #store;
  #load;
  /** Whether pictures were shown at the last update. */
  #before = false;
  /** @type {Slot<{}, PicturePage>} */
  page;

  /**
   * @param {Store} store
   * @param {(store: Store) => Promise<PicturePage>} load
   * @param {() => void} onChange
   */
  constructor(store, load, onChange) {
    this.#store = store;
    this.#load = load;
    this.page = new Slot(onChange);
  }

  /** Whether the model reads pictures, and the viewer does not want to give it texts. */
  get isOfPictures() {
    const { info, state } = this.#store;
    return (info ? readsPictures(info) : EXPECTED) && state.input === 'pictures';
  }

  /** Layers and heads that are shown. @returns {{layers: number, heads: number}|undefined} */
  get tower() {
    const { info } = this.#store;
    return (this.isOfPictures && info?.vision) || info;
  }

  /** Page of pictures if it is shown. @returns {PicturePage|null} */
  get pictures() {
    return this.isOfPictures ? (this.page.answered?.reply ?? null) : null;
  }

  /** Views that are shown. @returns {Views} */
  get views() {
    return this.pictures?.views ?? this.#store.views;
  }

  /** What the page asks about; null until a picture is chosen. @returns {Source|null} */
  get source() {
    const { state } = this.#store;
    return this.isOfPictures ? (this.pictures?.source(state) ?? null) : sourceOf(state);
  }

  /** Load the script for pictures if the model reads them, and return whether the page shows the other now. */
  update() {
    if (this.isOfPictures) this.page.ask({}, () => this.#load(this.#store));
    const changed = this.isOfPictures !== this.#before;
    this.#before = this.isOfPictures;
    return changed;
  }
}
