/** View of the similarity of a picture and a text, or of two pictures, with the share of each patch and word. */

import { inOtherText, OtherTextError } from '../api/errors.js';
import { decomposition, explanation, occlusion } from '../api/explanation.js';
import { readsBoth } from '../api/service-info.js';
import { bdi, html, nothing } from '../core/html.js';
import { fixed } from '../core/numbers.js';
import { stacked } from '../draw/scene.js';
import {
  areDone,
  methodOf,
  methodSwitch,
  reliability,
  sharesOf,
  similarityOf,
} from '../ui/explanation-methods.js';
import { paced, waitOf } from '../ui/explanation-tables.js';
import { segments } from '../ui/controls.js';
import { chosen, dropped } from '../ui/open-file.js';
import { textField } from '../ui/text-field.js';
import { lookControls } from './maps.js';
import { pictureProblem } from './problems.js';
import { blockOf, nameOfSide, sceneOf, sideJson, sideOf } from './sides.js';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('../ui/view-slot.js').Parts} Parts
 * @typedef {import('../api/explanation.js').Explanation} Reply
 * @typedef {import('./sides.js').Selected} Selected
 */
/**
 * @typedef {Object} Other the second picture, and the word or patch that is chosen
 * @property {import('./files.js').Picture|null} picture
 * @property {string} error of its file
 * @property {(files: Iterable<Blob>|null) => Promise<void>} open
 * @property {Selected|null} selected
 */

/** @type {import('../ui/explanation-methods.js').Methods} */
const METHODS = {
  occlusion: {
    name: 'Remove each part',
    says: 'What the similarity loses without a word, or without a square of patches, which is then neither attended to nor pooled (occlusion). Below 0, in brown, the two are more alike without it.',
  },
  pairs: {
    name: 'By final vectors',
    says: 'The share of each pair of last vectors in the similarity. It says where the similarity lies in the vectors that are compared, not where it came from: the vector at a patch has already mixed in the others.',
  },
  decomposition: {
    name: 'By input parts',
    says: 'The share of each pair of input patches or words, followed through all layers with attention as it is (decomposition). It does not say what would have been without them.',
  },
};
const PAIRED =
  'Choose a word or a patch to see its pairs: the other side then shows its shares with each word or patch. Choose it again for all.';

/**
 * @param {Other} other
 * @returns {import('../ui/view-slot.js').View<{other: string}, Reply>}
 */
export const whyOfPicture = (other) => ({
  title: 'Why alike?',

  asks(state, _, store) {
    if (isOfText(store)) return state.c.trim() ? { other: state.c } : null;
    return other.picture ? { other: other.picture.name } : null;
  },

  async answer({ reading, asked, signal }) {
    other.selected = null;
    const texts = [reading.texts[0], asked.other];
    return explanation({ reading, texts, cut: asked.cut, signal, include: ['pairs'] }).catch(inOtherText);
  },

  parts({ asked: { cut }, reply }) {
    const units = { spans: 'words', block: blockOf(reply.texts) };
    return {
      occlusion: (signal) => paced(reply, 'occlusion', occlusion(reply, cut, signal, units)),
      decomposition: (signal) => paced(reply, 'decomposition', decomposition(reply, cut, signal)),
    };
  },

  draw(store, shown, parts) {
    const { error } = store;
    return html`<h2 id="view-title" tabindex="-1">Why alike?</h2>${input(store, other)}
      ${error instanceof OtherTextError ? pictureProblem(store, error.reason, isOfText(store) ? 'the text' : 'the second picture') : nothing}
      ${shown ? explained(store, shown.reply, parts, other) : nothing}`;
  },

  says: ({ reply }, parts) =>
    `Similarity ${fixed(reply.similarity, 3)}${areDone(parts, ['occlusion', 'decomposition']) ? ' explained.' : '; its shares are being computed.'}`,

  file({ state }, { reply }, parts) {
    const method = methodOf(state, reply, parts);
    const shares = sharesOf(reply, parts)[method];
    const similarity = `Similarity ${fixed(reply.similarity, 4)} · ${METHODS[method].name}`;
    const scenes = [0, 1].map((side) => ({
      ...sceneOf(state, reply, shares, side, other.selected),
      title: side ? nameOfSide(reply, side) : `${similarity} · ${nameOfSide(reply, side)}`,
    }));
    const values = [0, 1].map((side) => sideJson(reply, shares, side));
    return {
      name: `why alike ${METHODS[method].name.toLowerCase()}`,
      texts: [0, 1].map((side) => nameOfSide(reply, side)),
      scene: stacked(scenes),
      json: { similarity: reply.similarity, method, sides: values, error: shares?.error ?? null },
    };
  },
});

/** Whether the picture is compared with a text. @param {Store} store */
const isOfText = ({ state, info }) => readsBoth(info) && state.beside === 'text';

/** Field of the text, or of the second picture. @param {Store} store @param {Other} other */
function input(store, other) {
  const field = {
    id: 'text-c',
    label: 'Text',
    value: store.state.c,
    patch: (/** @type {string} */ c) => ({ c }),
  };
  const picture = html`<div class="picture-input" @dragover=${(/** @type {DragEvent} */ event) => event.preventDefault()} @drop=${dropped(other.open)}>
    <label class="door picture-file">${other.picture ? 'Another second picture' : 'Choose a second picture'}
      <input type="file" id="picture-b" accept="image/*" @change=${chosen(other.open)}></label>
    ${other.picture ? html`<b class="picture-name">${bdi(other.picture.label)}</b>` : html`<span class="says">Or drop it here.</span>`}</div>
    ${other.error ? html`<p class="problem" role="alert">${other.error}</p>` : nothing}`;
  return html`<div class="picture-why">${readsBoth(store.info) ? segments('Compared with', { text: 'A text', picture: 'A picture' }, store.state.beside, (beside) => store.go({ beside })) : nothing}
    ${isOfText(store) ? textField(store, field) : picture}</div>`;
}

/** @param {Store} store @param {Reply} reply @param {Parts} parts @param {Other} other */
function explained(store, reply, parts, other) {
  const { state } = store;
  const method = methodOf(state, reply, parts);
  const shares = sharesOf(reply, parts)[method];
  const select = (/** @type {Selected} */ selected) => {
    const again = JSON.stringify(selected) === JSON.stringify(other.selected);
    other.selected = again ? null : selected;
    store.redraw();
  };
  const selected = shares?.pairs ? other.selected : null;
  return html`${similarityOf(store, reply)}
    ${methodSwitch(store, METHODS, reply, parts)}
    <div class="controls">${lookControls(store)}</div>
    ${shares?.pairs ? html`<p class="says">${PAIRED}</p>` : nothing}
    ${shares ? nothing : html`<p>${waitOf(reply, parts, method)}</p>`}
    <div class="picture-sides">${[0, 1].map((side) => sideOf(store, reply, shares, side, { selected, select }))}</div>
    <section class="picture-reliability" aria-label="How reliable is this?"><h3>How reliable is this?</h3>${reliability(METHODS, reply, parts)}</section>`;
}
