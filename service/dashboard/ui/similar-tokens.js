/** Tokens of many texts that are similar to one token of the page's text, in their contexts. */

import { hiddenStates, similar } from '../api/similar-tokens.js';
import { errorOf, isPending, shownOf } from '../core/answers.js';
import { tableOf } from '../core/csv.js';
import { bdi, html, nothing, share } from '../core/html.js';
import { fixed } from '../core/numbers.js';
import { OF_ONE_TEXT, write } from '../core/state.js';
import { unitsOf } from '../core/words.js';
import { choice } from './controls.js';
import { partProblem } from './explanation-tables.js';
import { linkedText } from './linked-text.js';
import { progressBar } from './progress.js';
import { download } from './save-buttons.js';
import { tokenStrip } from './token-strip.js';

const MORE = 20;
/** Code points of context on each side of a token. */
const AROUND = 60;

/**
 * @typedef {import('./store.js').Store} Store
 * @typedef {import('./view-slot.js').Parts} Parts
 * @typedef {import('./view-slot.js').Work} Work
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {import('../api/similar-tokens.js').HiddenStates} HiddenStates
 * @typedef {import('../core/state.js').State} State
 * @typedef {{reply: {reading: Reading, count: number}, old: boolean}} Shown
 * @typedef {{unit: import('../core/words.js').Unit, layer: number, part: string}} Chosen `layer` is the number of
 *   the hidden states, `part` the name of their slot
 */

/** Return the chosen token and layer, or null. @param {State} state @param {Reading} reading @returns {Chosen|null} */
function chosenOf({ like, after }, reading) {
  const unit = like === null ? undefined : unitsOf(reading, { words: false, bare: false })[like];
  if (!unit || unit.special) return null;
  const layer = Math.min(after ?? reading.layers, reading.layers);
  return { unit, layer, part: `hidden states ${layer}` };
}

/** Return the work on the chosen layer by the name of its slot. @param {State} state @param {Reading} reading @param {string[]} list @returns {Object<string, Work>} */
export function similarWork(state, reading, list) {
  const chosen = chosenOf(state, reading);
  if (!chosen) return {};
  const given = { reading, list, layer: chosen.layer, cut: state.cut };
  return { [chosen.part]: (signal, showPart) => hiddenStates({ ...given, signal, showPart }) };
}

/** Return the similar tokens as far as they have come, or null. @param {State} state @param {Reading} reading @param {Parts} parts */
function foundBy(state, reading, parts) {
  const chosen = chosenOf(state, reading);
  const slot = chosen && parts[chosen.part];
  const shown = slot && shownOf(slot.answer);
  if (!chosen || !shown) return null;
  const states = /** @type {HiddenStates} */ (shown.reply);
  const all = similar(states, chosen.unit.tokens[0]);
  const rows = all.slice(0, state.listed).map(({ text: place, token: index, cosine }) => {
    const { text, tokens, offsets } = states.texts[place];
    const [start, end] = offsets[index];
    return { number: place + 1, cosine, token: tokens[index], index, start, end, text };
  });
  return { ...chosen, states, rows, all, whole: shown.whole };
}

/** Return what files have of the similar tokens, once they are complete. @param {State} state @param {Reading} reading @param {Parts} parts */
export function similarJson(state, reading, parts) {
  const found = foundBy(state, reading, parts);
  if (!found?.whole) return {};
  const { unit, layer, rows, all, states } = found;
  const compared = { texts: states.texts.length, tokens: all.length };
  return { similar: { token: unit.label, index: unit.tokens[0], layer, ...compared, closest: rows } };
}

/** Return what screen readers announce. @param {State} state @param {Reading} reading @param {Parts} parts */
export function similarSays(state, reading, parts) {
  const found = foundBy(state, reading, parts);
  return found?.whole ? ` ${found.all.length} tokens compared with ${found.unit.name}.` : '';
}

/** @param {Store} store @param {Shown} shown @param {Parts} parts */
export function similarTokens(store, shown, parts) {
  const { state } = store;
  const { reading } = shown.reply;
  const units = unitsOf(reading, { words: false, bare: false }).filter(({ special }) => !special);
  const chosen = shown.old ? null : chosenOf(state, reading);
  return html`<h3 id="similar-title" tabindex="-1">Tokens like one of the text</h3>
    <p class="says">Choose a token to find those of these texts whose hidden states are closest to its own, by their cosine.</p>
    ${tokenStrip({
      label: 'Tokens: choose one to find similar ones',
      text: reading.texts[0],
      units,
      roles: { chosen: chosen ? units.indexOf(chosen.unit) : -1 },
      old: shown.old,
      pick: ({ tokens: [like] }) => store.go({ like: like === state.like ? null : like, listed: MORE }),
    })}
    ${chosen ? closest(store, shown, parts, chosen) : nothing}`;
}

/** @param {Store} store @param {Shown} shown @param {Parts} parts @param {Chosen} chosen */
function closest(store, { reply: { reading, count } }, parts, { layer, part, unit }) {
  const { state } = store;
  const options = Array.from({ length: reading.layers + 1 }, (_, i) => ({
    value: String(i),
    label: i === 0 ? 'embeddings' : `layer ${i - 1}`,
  }));
  const choose = (/** @type {string} */ value) => {
    for (const slot of Object.values(parts)) slot.clear(); // a layer's states take megabytes
    store.go({ after: Number(value) === reading.layers ? null : Number(value), listed: MORE });
  };
  const found = foundBy(state, reading, parts);
  const slot = parts[part];
  let progress = /** @type {import('../core/html.js').Template} */ (nothing);
  if (isPending(slot?.answer ?? null)) {
    const done = found?.states.texts.length ?? 0;
    progress = progressBar('Texts compared', { done, began: slot.began }, count, () => slot.halt());
  }
  const again = () => {
    slot.clear();
    store.go({}, { replace: true });
  };
  const isStopped = found?.whole && found.states.texts.length < count;
  const button = (/** @type {string} */ name, /** @type {() => void} */ act) =>
    html`<button type="button" class="quiet" @click=${act}>${name}</button>`;
  return html`<div class="controls">${choice('Hidden states after', options, String(layer), choose)}
      ${found?.whole && found.rows.length ? button('CSV', () => saveTable(unit.label, found.rows)) : nothing}
      ${isStopped ? button('Compare all texts', again) : nothing}</div>
    ${errorOf(slot?.answer ?? null) ? html`<p>${partProblem(slot)}</p>` : progress}
    ${found ? rowsOf(store, found, isStopped ? `Stopped after ${found.states.texts.length} of ${count} texts.` : '') : nothing}`;
}

/** @param {Store} store @param {NonNullable<ReturnType<typeof foundBy>>} found @param {string} note */
function rowsOf(store, { rows, all, unit }, note) {
  const { listed } = store.state;
  const addressOf = (/** @type {{text: string, index: number}} */ { text, index }) =>
    write({ ...store.state, ...OF_ONE_TEXT, a: text, b: null, view: 'head', pins: [index] });
  const left = all.length - rows.length;
  const more = () =>
    store.go(
      { listed: listed + MORE },
      { replace: true, ...(left > MORE ? {} : { focus: '#similar-title' }) },
    );
  return html`<p class="says">${note} The ${rows.length} closest of ${all.length} tokens to ${bdi(unit.name)}.</p>
    <table class="links many similar">
    <thead><tr><th scope="col">token in its text</th><th scope="col" class="number">cosine</th></tr></thead>
    <tbody>${rows.map(
      (row) => html`<tr class=${row.cosine < 0 ? 'less' : ''}>
        <td><a href=${addressOf(row)}>${linkedText(row.text, [{ span: [row.start, row.end], name: 'from' }], AROUND)}</a></td>
        <td class="number"><span class="meter" .style=${share(Math.abs(row.cosine))}></span>${fixed(row.cosine, 4)}</td></tr>`,
    )}</tbody></table>
    ${left ? html`<button type="button" class="quiet" @click=${more}>Show ${Math.min(MORE, left)} more</button>` : nothing}`;
}

/** @param {string} label @param {Object<string, any>[]} rows */
const saveTable = (label, rows) =>
  download(new Blob([tableOf(rows)], { type: 'text/csv' }), `headscope-tokens-like-${label}.csv`);
