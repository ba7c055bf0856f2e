/** Page of a model for pictures: what stands above the tabs, the views, and the picture itself. */

import { open } from '../api/reading.js';
import { slotOf } from '../ui/view-slot.js';
import { ablationOfPicture } from './ablation.js';
import { headsOfPicture } from './all-heads.js';
import { chooser } from './chooser.js';
import { examplePicture } from './example.js';
import { forget, picturesIn, readPicture } from './files.js';
import { headOfPicture, rolloutOfPicture } from './one-map.js';
import { fromOf, namedForPicture, toOf, unitOf } from './tokens.js';
import { whyOfPicture } from './why.js';

/** Number of earlier pictures that are kept. */
const KEPT = 4;

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {import('./files.js').Picture} Picture
 */

/**
 * Return the page of pictures, once its styles are there.
 *
 * @param {Store} store
 * @returns {Promise<import('../ui/modality.js').PicturePage>}
 */
export async function picturePage(store) {
  await loadStyles();
  const choice = chooserOf(store);
  /** @type {import('./why.js').Other} */
  const other = Object.assign(holder(store), { selected: null });
  listen(store, (file) => choice.open([file]));
  const endOf = () => choice.end;
  setTimeout(choice.begin);
  const { arrived } = store;
  return {
    views: {
      heads: slotOf(headsOfPicture(endOf))(arrived),
      head: slotOf(headOfPicture(endOf))(arrived),
      rollout: slotOf(rolloutOfPicture(endOf))(arrived),
      ablation: slotOf(ablationOfPicture(endOf))(arrived),
      why: slotOf(whyOfPicture(other))(arrived),
    },
    source: ({ off }) => choice.picture && { texts: [choice.picture.name], cut: false, off },
    open: async (source, signal) => namedForPicture(await open(source, signal)),
    linkUnits(reading) {
      const to = toOf(store.state, reading);
      return [unitOf(reading, fromOf(store.state, reading)), to === null ? undefined : unitOf(reading, to)];
    },
    top: (one) => chooser(one, choice),
  };
}

/**
 * Return a place for a picture, which opens files.
 *
 * @param {Store} store
 */
function holder(store) {
  /** Earlier pictures, over which old answers are still drawn. @type {Picture[]} */
  const past = [];
  const held = {
    picture: /** @type {Picture|null} */ (null),
    error: '',
    /** @param {Iterable<Blob>|null} files */
    async open(files) {
      const [file] = files ?? [];
      if (file) await held.take(file, file instanceof File ? file.name : 'Example');
    },
    /** @param {Blob} file @param {string} label */
    async take(file, label) {
      try {
        const picture = await readPicture(file, label);
        if (held.picture) past.push(held.picture);
        if (past.length > KEPT) forget(/** @type {Picture} */ (past.shift()));
        Object.assign(held, { picture, error: '' });
      } catch (error) {
        held.error = error instanceof Error ? error.message : String(error);
      }
      store.go({}, { replace: true });
    },
  };
  return held;
}

/** Return the picture of the page, and what a click on it chooses. @param {Store} store */
function chooserOf(store) {
  const choice = Object.assign(holder(store), {
    end: /** @type {import('./maps.js').End} */ ('from'),
    example: async () => choice.open([await examplePicture()]),
    /** Show the example until a picture is chosen. */
    async begin() {
      const picture = await examplePicture();
      if (!choice.picture && !choice.error) await choice.open([picture]);
    },
    choosing(/** @type {import('./maps.js').End} */ end) {
      choice.end = end;
      store.redraw();
    },
  });
  return choice;
}

/** Load the styles of pictures, whose address the page has. @returns {Promise<void>} */
function loadStyles() {
  const named = /** @type {HTMLMetaElement} */ (document.querySelector('meta[name="picture-styles"]'));
  const link = Object.assign(document.createElement('link'), { rel: 'stylesheet', href: named.content });
  return new Promise((resolve, reject) => {
    link.onload = () => resolve();
    link.onerror = () => {
      link.remove();
      reject(new Error('A file of this page is missing: load the page again.'));
    };
    document.head.append(link);
  });
}

/** Take pictures that are pasted, or dropped anywhere on the page. @param {Store} store @param {(file: File) => void} take */
function listen(store, take) {
  const given = (/** @type {Event} */ event, /** @type {DataTransfer|null} */ data) => {
    const [file] = event.defaultPrevented || !store.modality.pictures ? [] : picturesIn(data);
    if (!file) return;
    event.preventDefault();
    take(file);
  };
  addEventListener('paste', (event) => given(event, event.clipboardData));
  addEventListener('drop', (event) => given(event, event.dataTransfer));
  addEventListener('dragover', (event) => {
    if (store.modality.pictures) event.preventDefault();
  });
}
