/** View of the similarity of a picture and a text, or of two pictures, with the share of each patch and word. */

import { decomposition, explanation, occlusion } from '../api/explanation.js';
import { readsBoth } from '../api/service-info.js';
import { bdi, html, nothing } from '../core/html.js';
import { fixed } from '../core/numbers.js';
import { stacked } from '../draw/scene.js';
import { paced, waitOf } from '../ui/explanation-tables.js';
import { chosen, dropped } from '../ui/open-file.js';
import { worded } from '../ui/problems.js';
import { textField } from '../ui/text-field.js';
import { OtherTextError } from '../api/errors.js';
import { agreement, blockOf } from './explained.js';
import { lookControls } from './maps.js';
import { pictureProblem } from './problems.js';
import { nameOfSide, sceneOf, sideJson, sideOf } from './sides.js';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {import('../core/state.js').State} State
 * @typedef {import('../ui/view-slot.js').Parts} Parts
 * @typedef {State['why']} MethodName
 * @typedef {import('../api/explanation.js').Explanation} Reply
 * @typedef {import('../api/explanation.js').Shares} Shares
 * @typedef {import('./explained.js').Selected} Selected
 */
/**
 * @typedef {Object} Other the second picture, and the word or patch that is chosen
 * @property {import('./files.js').Picture|null} picture
 * @property {string} error of its file
 * @property {(files: Iterable<Blob>|null) => Promise<void>} open
 * @property {Selected|null} selected
 */

/** @type {Record<MethodName, {name: string, says: string}>} */
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
const NAMES = /** @type {MethodName[]} */ (Object.keys(METHODS));
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
    try {
      return await explanation({ reading, texts, cut: asked.cut, signal, include: ['pairs'] });
    } catch (error) {
      throw signal.aborted ? error : new OtherTextError(error);
    }
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
    `Similarity ${fixed(reply.similarity, 3)}${['occlusion', 'decomposition'].every((name) => isDone(parts, name)) ? ' explained.' : '; its shares are being computed.'}`,

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
  const button = (/** @type {State['beside']} */ beside, /** @type {string} */ name) =>
    html`<button type="button" aria-pressed=${String(store.state.beside === beside)} @click=${() => store.go({ beside })}>${name}</button>`;
  const picture = html`<div class="picture-input" @dragover=${(/** @type {DragEvent} */ event) => event.preventDefault()} @drop=${dropped(other.open)}>
    <label class="door picture-file">${other.picture ? 'Another second picture' : 'Choose a second picture'}
      <input type="file" id="picture-b" accept="image/*" @change=${chosen(other.open)}></label>
    ${other.picture ? html`<b class="picture-name">${bdi(other.picture.label)}</b>` : html`<span class="says">Or drop it here.</span>`}</div>
    ${other.error ? html`<p class="problem" role="alert">${other.error}</p>` : nothing}`;
  return html`<div class="picture-why">${readsBoth(store.info) ? html`<div class="segments" role="group" aria-label="Compared with">${button('text', 'A text')}${button('picture', 'A picture')}</div>` : nothing}
    ${isOfText(store) ? textField(store, field) : picture}</div>`;
}

/** @param {Parts} parts @param {string} name */
function isDone(parts, name) {
  const answer = parts[name]?.answer;
  return Boolean(answer && !('pending' in answer));
}

/** @param {Reply} reply @param {Parts} parts @returns {Record<MethodName, Shares|null>} */
function sharesOf(reply, parts) {
  const done = (/** @type {string} */ name) => {
    const answer = parts[name]?.answer;
    return answer && 'reply' in answer ? answer.reply : null;
  };
  return { pairs: reply.pairs, occlusion: done('occlusion'), decomposition: done('decomposition') };
}

/** Return the chosen method or, if it has failed, the first one that has come. @param {State} state @param {Reply} reply @param {Parts} parts @returns {MethodName} */
function methodOf({ why }, reply, parts) {
  return hasFailed(why, reply, parts) ? (NAMES.find((name) => sharesOf(reply, parts)[name]) ?? why) : why;
}

/** @param {MethodName} method @param {Reply} reply @param {Parts} parts */
const hasFailed = (method, reply, parts) =>
  method === 'pairs' ? !reply.pairs : Boolean(parts[method]?.answer && 'error' in parts[method].answer);

/** @param {Store} store @param {Reply} reply @param {Parts} parts @param {Other} other */
function explained(store, reply, parts, other) {
  const { state } = store;
  const known = sharesOf(reply, parts);
  const method = methodOf(state, reply, parts);
  const shares = known[method];
  const select = (/** @type {Selected} */ selected) => {
    const again = JSON.stringify(selected) === JSON.stringify(other.selected);
    other.selected = again ? null : selected;
    store.redraw();
  };
  const selected = shares?.pairs ? other.selected : null;
  return html`<p class="why-similarity"><span class="figure">${fixed(reply.similarity, 4)}</span> cosine of the two vectors${state.off.length ? ', with every head switched on' : ''}</p>
    <div class="segments" role="group" aria-label="Method">${NAMES.map(
      (
        name,
      ) => html`<button type="button" aria-pressed=${String(name === method)} ?disabled=${hasFailed(name, reply, parts)}
        @click=${() => store.go({ why: name })}>${METHODS[name].name}</button>`,
    )}</div>
    <p class="says">${METHODS[method].says}</p>
    <div class="controls">${lookControls(store)}</div>
    ${shares?.pairs ? html`<p class="says">${PAIRED}</p>` : nothing}
    ${shares ? nothing : html`<p>${waitOf(reply, parts, method)}</p>`}
    <div class="picture-sides">${[0, 1].map((side) => sideOf(store, reply, shares, side, { selected, select }))}</div>
    ${reliability(reply, parts)}`;
}

/** Table of the methods: how far each can be relied on. @param {Reply} reply @param {Parts} parts */
function reliability(reply, parts) {
  const known = sharesOf(reply, parts);
  const row = (/** @type {MethodName} */ name) => {
    const shares = known[name];
    const head = html`<th scope="row">${METHODS[name].name}</th>`;
    if (!shares)
      return html`<tr>${head}<td colspan="3">${name === 'pairs' ? worded(reply.refusal) : waitOf(reply, parts, name)}</td></tr>`;
    const agrees = known.occlusion && shares.pairs ? agreement(shares, known.occlusion) : null;
    const sum = shares.worth[0].reduce((total, value) => total + value, 0);
    return html`<tr>${head}<td class="number">${shares.pairs ? fixed(sum, 4) : '–'}</td>
      <td class="number">${shares.error === null ? '–' : shares.error.toExponential(0)}</td>
      <td class="number">${name === 'occlusion' ? 'reference' : agrees === null ? '–' : fixed(agrees, 2)}</td></tr>`;
  };
  return html`<section class="picture-reliability" aria-label="How reliable is this?"><h3>How reliable is this?</h3>
    <table><thead><tr><th scope="col">Method</th><th scope="col" class="number">sums to</th><th scope="col" class="number">error</th>
      <th scope="col" class="number">agrees with removal</th></tr></thead><tbody>${NAMES.map(row)}</tbody></table>
    <p class="says">Shares should sum to ${fixed(reply.similarity, 4)}. Agreement is Spearman’s correlation with the losses without each word and square:
      near 0, shares do not tell which parts the model needs, however well they sum.</p></section>`;
}
