/** Card of the picture: opens files, chooses the two ends of a link, and ranks the heads by it. */

import { OtherTextError } from '../api/errors.js';
import { isPending } from '../core/answers.js';
import { bdi, html, nothing } from '../core/html.js';
import { score } from '../ui/composer.js';
import { segments } from '../ui/controls.js';
import { chosen } from '../ui/open-file.js';
import { ranking } from '../ui/link-finder.js';
import { fromOf, nameOf, specialsOf, toOf, viewOf } from './tokens.js';
import { pictureProblem } from './problems.js';
import './picture-map.js';

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {'from'|'to'} End
 * @typedef {Object} Chosen
 * @property {import('./files.js').Picture|null} picture
 * @property {string} error of the file that was opened last
 * @property {End} end that a click on a patch chooses
 * @property {(files: Iterable<Blob>|null) => Promise<void>} open
 * @property {() => void} example
 * @property {(end: End) => void} choosing
 */

const WAITS = 'Choose a patch that is looked at to see which heads connect the two.';

/** @param {Store} store @param {Chosen} choice */
export function chooser(store, choice) {
  const reading = choice.picture ? store.reading?.reply : undefined;
  const error = store.problem;
  return html`<section class=${`composer card picture-card${choice.picture ? '' : ' empty'}`} aria-label="Input">
    <div class="picture-input">${fields(choice)}
      ${reading ? html`${facts(store, reading)}${score(store)}` : nothing}</div>
    ${choice.error ? html`<p class="problem" role="alert">${choice.error}</p>` : nothing}
    ${error && !(error instanceof OtherTextError) ? pictureProblem(store, error) : nothing}
    ${reading && store.state.view !== 'why' ? finder(store, reading, choice) : nothing}
  </section>`;
}

/** @param {Chosen} choice */
const fields = ({
  picture,
  open,
  example,
}) => html`<label class="door picture-file">${picture ? 'Another picture' : 'Choose a picture'}
    <input type="file" id="picture" accept="image/*" @change=${chosen(open)}></label>
  <button type="button" class="quiet" @click=${example}>Example</button>
  ${
    picture
      ? html`<b class="picture-name">${bdi(picture.label)}</b>`
      : html`<p class="says">Or paste a picture, or drop it anywhere on this page. It is kept in the page’s memory and sent to the service
        with each question. It is not stored, and not in the address: choose it again after a reload.</p>`
  }`;

/** @param {Store} store @param {Reading} reading */
function facts({ text, reading: shown }, reading) {
  const { grid, size } = viewOf(reading);
  const specials = specialsOf(reading);
  return html`<span id="facts" class=${shown?.old ? 'facts stale' : 'facts'} aria-busy=${String(isPending(text.answer))}>${size[0]} × ${size[1]} pixels ·
    ${grid[0]} × ${grid[1]} patches${specials ? ` + ${specials} special` : ''}<span class="wide"> · ${reading.milliseconds} ms</span></span>`;
}

/**
 * @param {Store} store
 * @param {Reading} reading
 * @param {Chosen} choice
 */
function finder(store, reading, { end, choosing }) {
  const [from, to] = [fromOf(store.state, reading), toOf(store.state, reading)];
  const named = (/** @type {string} */ name, /** @type {number|null} */ token) =>
    html`${name} <b>${token === null ? '…' : nameOf(reading, token)}</b>`;
  const ends = { from: named('From', from), to: named('To', to) };
  return html`<div class="picture-finder" role="group" aria-label="Find heads by a link">
    <h2>Which head looks from here to there?</h2>
    ${segments('A click on a patch chooses', ends, end, choosing)}
    ${specialTokens(store, reading, end)}
    ${ranking(store, WAITS)}
  </div>`;
}

/** Buttons of the special tokens, which have no place in the picture. @param {Store} store @param {Reading} reading @param {End} end */
function specialTokens(store, reading, end) {
  const ends = { from: fromOf(store.state, reading), to: toOf(store.state, reading) };
  const tokens = Array.from({ length: specialsOf(reading) }, (_, token) => token);
  if (!tokens.length) return nothing;
  return html`<div class="special-tokens" role="group" aria-label="Special tokens">${tokens.map(
    (
      token,
    ) => html`<button type="button" class=${`word${ends.from === token ? ' from' : ''}${ends.to === token ? ' to' : ''}`}
      aria-pressed=${String(ends[end] === token)} @click=${() => store.go({ [end]: token })}>${nameOf(reading, token)}</button>`,
  )}</div>`;
}
