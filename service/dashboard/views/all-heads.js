/** View of all heads as thumbnails, in the model's order or sorted. */

import { isPending } from '../core/answers.js';
import { decode } from '../core/float16.js';
import { html, nothing, painted, repeat } from '../core/html.js';
import { namedMap, THUMBNAIL_SIDE } from '../core/maps.js';
import { quadrants } from '../core/matrix.js';
import { LABELS, STATISTICS } from '../core/statistics.js';
import { tokenUnits } from '../core/words.js';
import { theme } from '../draw/colours.js';
import { gallery, paintSmall, reduced } from '../draw/thumbnails.js';
import { arrowKeys } from '../ui/arrow-keys.js';
import { choice, colourLegend, scaleSwitch } from '../ui/controls.js';
import { definition } from '../ui/definition.js';

const SIGNIFICANT = 3;
/** Number of tokens from which on the page stays responsive between two maps. */
const LONG = 128;

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {{words: boolean, bare: boolean, part: import('../core/state.js').State['part']}} Asked
 * @typedef {import('../ui/view-slot.js').Shown<Asked, Reply>} Shown
 * @typedef {import('../api/reading.js').Reading} Reading
 * @typedef {{reading: Reading, smalls: (import('../draw/thumbnails.js').Small|null)[], cross: Float32Array}} Reply
 *   `cross`: how much the two texts of a pair look at each other, `[L · N]`
 * @typedef {{place: number, layer: number, head: number, label: string|null, value: number}} Head
 * @typedef {typeof paintSmall} Paint
 */

/** @type {import('../ui/view-slot.js').View<Asked, Reply>} */
export const headsView = {
  title: 'All heads',
  wantsMaps: ({ b, words, bare }) => b === null && !words && !bare,
  asks: ({ words, bare, part }, { texts }) => ({ words, bare, part: texts.length === 2 ? part : 'all' }),

  async answer({ reading, asked, signal, showPart }) {
    const count = reading.layers * reading.heads;
    /** @type {Reply} */
    const reply = { reading, smalls: Array(count).fill(null), cross: new Float32Array(count) };
    showPart(reply);
    const { words, bare, texts } = asked;
    if (reading.size > THUMBNAIL_SIDE && !words && !bare && texts.length === 1) {
      const { bits, side } = await reading.smallMaps(signal);
      const small = (/** @type {number} */ place) =>
        decode(bits.subarray(place * side ** 2, (place + 1) * side ** 2));
      const smalls = reply.smalls.map((_, place) => ({
        values: small(place),
        width: side,
        height: side,
        keys: reading.size,
      }));
      return { ...reply, smalls };
    }
    await fillFromMaps(reply, asked, signal, showPart);
    return reply;
  },

  ...thumbnailsBy(() => paintSmall),
};

/**
 * Return what draws thumbnails of all heads, in the model's order or sorted.
 *
 * @param {(state: import('../core/state.js').State, reading: Reading) => Paint} paintOf returns the same function
 *   while thumbnails stay the same
 * @param {typeof colourLegend} [legend]
 */
export function thumbnailsBy(paintOf, legend = colourLegend) {
  return {
    /** @param {Store} store @param {{reply: Reply}|null} shown */
    draw(store, shown) {
      if (!shown) return html`<div class="heads"></div>`;
      const { reading } = shown.reply;
      const sort = sorting(store, reading);
      const paint = paintOf(store.state, reading);
      const heads = ordered(store, shown.reply);
      const keys = shown.reply.smalls.find(Boolean)?.keys ?? reading.size;
      const thumbnails = (/** @type {Head[]} */ some) =>
        html`<div class="thumbnails">${repeat(
          some,
          ({ place }) => place,
          (head) => thumbnail(store, shown.reply, head, paint),
        )}</div>`;
      const layers = Array.from({ length: reading.layers }, (_, layer) => layer);
      const byLayer = sort === 'position';
      const waits = sort === 'link' && isPending(store.link.answer);
      return html`<div class="controls">${sortControls(store, reading, sort)}${scaleSwitch(store)}${legend(keys, store.state.linear)}
        <p class="says">${STATISTICS[sort]?.says ?? ''}</p></div>
      ${behaviours(reading, heads)}
      <div class=${`heads${byLayer ? ' by-layer' : ''}${waits ? ' stale' : ''}`} aria-busy=${String(waits)} .style=${`--heads: ${reading.heads}`} @keydown=${arrowKeys()}>
        ${
          byLayer
            ? layers.map(
                (layer) => html`<section class="layer" aria-label=${`Layer ${layer}`}><h3>Layer ${layer}</h3>
              ${thumbnails(heads.slice(layer * reading.heads, (layer + 1) * reading.heads))}</section>`,
              )
            : thumbnails(heads)
        }
      </div>`;
    },

    /** @param {{reply: Reply}} shown */
    says: ({ reply }) => `${reply.smalls.length} heads drawn.`,
    /** @param {Store} store */
    ready: (store) => store.state.sort !== 'link' || !isPending(store.link.answer),

    /** @param {Store} store @param {{reply: Reply}} shown */
    file(store, { reply }) {
      const { reading, smalls } = reply;
      const sort = sorting(store, reading);
      const heads = ordered(store, reply);
      const pictures = heads.map((head) => ({ ...written(reading, head, sort), small: smalls[head.place] }));
      return {
        name: `heads by ${sort}`,
        scene: gallery(pictures, reading.heads, store.state.linear, paintOf(store.state, reading)),
        json: {
          sort,
          up: store.state.up,
          heads: heads.map(({ layer, head, label, value }) => ({
            layer,
            head,
            label,
            ...(sort === 'link' || sort === 'cross' ? { [sort]: value } : {}),
            statistics: reading.statisticsOf(layer, head),
          })),
        },
      };
    },
  };
}

/**
 * Fill in the thumbnails of merged words, of a quadrant, or of a short text, from the complete maps.
 *
 * @param {Reply} reply filled
 * @param {Shown['asked']} asked
 * @param {AbortSignal} signal
 * @param {(part: Reply) => void} showPart
 */
async function fillFromMaps(reply, asked, signal, showPart) {
  const { reading, smalls, cross } = reply;
  const units = tokenUnits(reading);
  for await (const { layer, head, bits } of reading.everyMap(signal)) {
    const weights = decode(bits);
    const place = layer * reading.heads + head;
    if (reading.texts.length === 2) {
      const [first, second] = quadrants(weights, units);
      cross[place] = (first[1] + second[0]) / 2;
    }
    smalls[place] = reduced(namedMap(weights, reading, asked));
    if (head === reading.heads - 1) showPart({ ...reply });
    if (reading.size > LONG) await new Promise((resume) => setTimeout(resume));
  }
}

/**
 * Return the sort of the state if it is available, else `position`.
 *
 * @param {Store} store
 * @param {Reading} reading
 */
function sorting(store, reading) {
  const { sort } = store.state;
  const ranking = store.ranking;
  if (sort === 'link') return ranking?.reply.reading === reading ? sort : 'position';
  if (sort === 'cross') return reading.texts.length === 2 ? sort : 'position';
  return sort in STATISTICS || sort === 'label' ? sort : 'position';
}

/** @param {Store} store @param {Reading} reading @param {string} sort */
function sortControls(store, reading, sort) {
  const { up } = store.state;
  const [from, to] = store.linkUnits(reading);
  const options = [
    { value: 'position', label: 'Layer and head' },
    { value: 'label', label: 'Behaviour' },
    ...Object.entries(reading.names.statistics).map(([value, { name }]) => ({ value, label: name })),
    ...(from && to ? [{ value: 'link', label: `Link ${from.name} → ${to.name}` }] : []),
    ...(reading.texts.length === 2 ? [{ value: 'cross', label: 'Between the texts' }] : []),
  ];
  const chosen = store.state.sort === 'link' && from && to ? 'link' : sort;
  return html`${choice('Sort by', options, chosen, (value) => store.go({ sort: value, up: false }))}
    ${
      sort === 'position'
        ? nothing
        : html`<button type="button" class="quiet" @click=${() => store.go({ up: !up })}>${up ? '↑ smallest first' : '↓ largest first'}</button>`
    }`;
}

/** @param {Store} store @param {Reply} reply @returns {Head[]} */
function ordered(store, { reading, cross }) {
  const sort = sorting(store, reading);
  const values = { link: store.ranking?.reply.weights, cross }[sort] ?? reading.statistics[sort];
  const heads = Array.from({ length: reading.layers * reading.heads }, (_, place) => {
    const { layer, head } = reading.headAt(place);
    return { place, layer, head, label: reading.labelOf(layer, head), value: values?.[place] ?? 0 };
  });
  if (sort === 'position') return heads;
  const names = Object.keys(LABELS);
  const key = (/** @type {Head} */ { label, value }) =>
    sort === 'label' ? -(label ? names.indexOf(label) : names.length) : value;
  const sign = store.state.up ? 1 : -1;
  return heads.sort((a, b) => sign * (key(a) - key(b)));
}

/** Definitions of the behaviours that are named under thumbnails. @param {Reading} reading @param {Head[]} heads */
function behaviours({ names }, heads) {
  const named = new Set(heads.map(({ label }) => label));
  const terms = Object.entries(names.labels).filter(([label]) => named.has(label));
  return terms.length
    ? html`<p class="says behaviours">Behaviours: ${terms.map(([, { name, says }], i) => html`${i ? ' · ' : ''}${definition(name, says)}`)}</p>`
    : nothing;
}

/** Return the caption of a thumbnail. @param {Reading} reading @param {Head} head @param {string} sort */
function written(reading, { layer, head, label, value }, sort) {
  const plain = sort === 'position' || sort === 'label';
  return {
    name: `${layer}·${head}${plain ? '' : `  ${value.toPrecision(SIGNIFICANT)}`}`,
    label: label ? reading.names.labels[label].name : '',
  };
}

/** @param {HTMLCanvasElement} canvas @param {Paint} paint @param {import('../draw/thumbnails.js').Small|null} small @param {boolean} linear */
const painting = (canvas, paint, small, linear) => paint(canvas, small, linear);

/** @param {Store} store @param {Reply} reply @param {Head} one @param {Paint} paint */
function thumbnail(store, { reading, smalls }, one, paint) {
  const { state } = store;
  const { layer, head, place } = one;
  const { name, label } = written(reading, one, sorting(store, reading));
  const isOff = reading.off.includes(`${layer}.${head}`);
  const current = reading.place(state);
  const isCurrent = current.layer === layer && current.head === head;
  const says = [
    `Layer ${layer} head ${head}`,
    [name, label].filter(Boolean).join(' '),
    isOff ? 'switched off' : '',
  ];
  const show = () => store.go({ view: 'head', layer, head, most: false }, { focus: '#view-title' });
  return html`<button type="button" class=${`thumbnail${isOff ? ' off' : ''}${isCurrent ? ' current' : ''}`}
    .tabIndex=${isCurrent ? 0 : -1} aria-label=${says.filter(Boolean).join(', ')}
    title=${one.label ? LABELS[one.label].says : ''} @click=${show}><canvas aria-hidden="true"
      ${painted(painting, paint, smalls[place], state.linear, theme())}></canvas><span class="thumbnail-name">${name}</span> <span class="thumbnail-label">${label}</span></button>`;
}
