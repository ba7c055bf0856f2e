/**
 * Finder of heads by a link: ranks all heads by the weight from one token or word to another. The two are
 * chosen by clicks on words, a cell or a row, or from a list if the text is short.
 *
 * @typedef {import('../core/words.js').Unit} Unit
 * @typedef {{reading: import('../api/reading.js').Reading, first: Unit, second: Unit, weights: Float32Array}}
 *   Ranking `weights` `[L · N]`
 */

import { isPending } from '../core/answers.js';
import { bdi, html, nothing, share } from '../core/html.js';
import { placeOf } from '../core/maps.js';
import { largest } from '../core/matrix.js';
import { unitsOf } from '../core/words.js';
import { select } from './controls.js';
import { tokenStrip } from './token-strip.js';

const BEST = 8;
/** Maximum number of units in a list. */
const LISTED = 64;
const WAITS = 'Click two words of the text to see which heads join them.';

/** @typedef {import('./store.js').Store} Store */

/** @param {Store} store */
export function linkFinder(store) {
  const reading = store.reading?.reply;
  const units = reading ? unitsOf(reading, { words: store.state.words, bare: false }) : [];
  const busy = isPending(store.text.answer) || isPending(store.link.answer);
  const open = store.picking ?? (reading !== undefined && !store.linkUnits(reading).every(Boolean));
  const toggle = () => {
    store.picking = !open;
    store.redraw();
  };
  return html`<section id="finder" class="card finder" aria-label="Find heads by a link" aria-busy=${String(busy)}>
    <h2>Which heads connect two words?</h2>
    <button type="button" class="quiet" aria-expanded=${String(open)} aria-controls="strip" @click=${toggle}>Choose words</button>
    <div class="ends">${reading ? ends(store, reading, units) : nothing}</div>
    ${ranking(store, WAITS)}
    <div id="strip" ?hidden=${!open}>${reading && open ? strip(store, reading, units) : nothing}</div>
  </section>`;
}

/** @param {Store} store @param {import('../api/reading.js').Reading} reading @param {Unit[]} units */
function ends(store, reading, units) {
  const seen = store.withFirstLink(reading);
  const [from, to] = /** @type {const} */ (['from', 'to']).map((end) => {
    const token = seen[end];
    const place = token === null ? -1 : placeOf(units, token);
    if (units.length > LISTED) return html`<b class="end">${place < 0 ? '…' : bdi(units[place].name)}</b>`;
    const options = units.map((unit) => ({ value: String(unit.tokens[0]), label: unit.name }));
    return select(
      [{ value: '', label: '…' }, ...options],
      place < 0 ? '' : options[place].value,
      ({ target }) => store.go({ [end]: target.value === '' ? null : Number(target.value) }),
      `${end === 'from' ? 'From' : 'To'} token`,
    );
  });
  return html`${from}<span aria-hidden="true">→</span>${to}`;
}

/** @param {Store} store @param {string} hint for as long as no link is chosen */
export function ranking(store, hint) {
  const shown = store.ranking;
  if (!shown) {
    const wanted = store.reading && !isPending(store.link.answer) && !store.problem;
    return html`<ol class="ranking">${wanted ? html`<li class="says">${hint}</li>` : nothing}</ol>`;
  }
  const { reading, first, second, weights } = /** @type {Ranking} */ (shown.reply);
  const chip = (/** @type {number} */ place) => {
    const { layer, head } = reading.headAt(place);
    const text = `${layer}·${head} ${weights[place].toFixed(3)}`;
    const open = () =>
      store.go(
        { view: 'head', layer, head, most: false, pins: [first.tokens[0]], part: 'all' },
        { focus: '#view-title' },
      );
    return html`<li><button type="button" class="chip" data-layer=${layer} data-head=${head} ?disabled=${shown.old}
      title=${`Show layer ${layer} head ${head}`} .style=${share(weights[place])}
      aria-label=${`Layer ${layer} head ${head}, ${text}: ${first.name} to ${second.name}`}
      @click=${open}><b>${layer}·${head}</b> ${weights[place].toFixed(3)}</button></li>`;
  };
  return html`<ol class=${shown.old ? 'ranking scrolls stale' : 'ranking scrolls'} aria-busy=${String(shown.old)} @focusin=${reveal}>${largest(weights, BEST).map(chip)}</ol>`;
}

/** Scroll a chip that gets the focus into the row. @param {{target: HTMLElement}} event */
const reveal = ({ target }) => target.scrollIntoView({ block: 'nearest', inline: 'nearest' });

/**
 * Tokens or words of the text; a click on two of them asks for the heads that link them.
 *
 * @param {Store} store
 * @param {import('../api/reading.js').Reading} reading
 * @param {Unit[]} units
 */
function strip(store, reading, units) {
  const { old } = /** @type {NonNullable<Store['reading']>} */ (store.reading);
  const seen = store.withFirstLink(reading);
  const [from, to] = [seen.from, seen.to].map((token) => (token === null ? -1 : placeOf(units, token)));
  const click = (/** @type {Unit} */ { tokens: [token] }) => {
    const first = store.state.from === null || store.state.to !== null;
    store.picking = true;
    store.go(first ? { from: token, to: null } : { to: token });
  };
  return tokenStrip({
    label: 'Tokens: click the one that looks, then the one it looks at',
    text: reading.texts[0],
    units,
    roles: { from, to },
    old,
    pick: click,
  });
}
