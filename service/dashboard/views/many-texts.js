/** View of one head over many texts: distributions of its statistics, and the texts that show it best. */

import { corpus, linesOf, MOST_CHARACTERS, refusalOf } from '../api/corpus.js';
import { inOtherText } from '../api/errors.js';
import { bdi, html, nothing, painted, share } from '../core/html.js';
import { memo } from '../core/memo.js';
import { SAMPLES } from '../core/sample-texts.js';
import { OF_ONE_TEXT, write } from '../core/state.js';
import { STATISTICS } from '../core/statistics.js';
import { CanvasSurface } from '../draw/canvas-and-svg.js';
import { contextOf } from '../draw/canvas.js';
import { theme } from '../draw/colours.js';
import { drawHistogram, HISTOGRAM, histogramOf } from '../draw/histogram.js';
import { choice } from '../ui/controls.js';
import { definition } from '../ui/definition.js';
import { headPadOf } from '../ui/head-pad.js';
import { linkedText } from '../ui/linked-text.js';
import { chosen, dropped } from '../ui/open-file.js';
import { otherTextProblem } from '../ui/problems.js';
import { similarJson, similarSays, similarTokens, similarWork } from '../ui/similar-tokens.js';
import { textField } from '../ui/text-field.js';

const ROWS = 20;
const LINK = 'link';
const ACROSS = 4;
/** Upper bound of the UTF-8 bytes of a UTF-16 unit. */
const BYTES_A_CHARACTER = 4;

/**
 * @typedef {import('../ui/store.js').Store} Store
 * @typedef {{many: string, layer: number, head: number}} Asked
 * @typedef {import('../api/corpus.js').Corpus} Reply
 * @typedef {import('../ui/view-slot.js').Shown<Asked, Reply>} Shown
 * @typedef {import('../api/corpus.js').TextResult} TextResult
 */

/** @type {import('../ui/view-slot.js').View<Asked, Reply>} */
export const textsView = {
  title: 'Many texts',
  asks: (state, reading) => (refusalOf(state.many) ? null : { many: state.many, ...reading.place(state) }),

  answer: ({ reading, asked, signal, showPart }) =>
    corpus({ ...asked, list: listOf(asked.many), reading, signal, showPart }).catch(inOtherText),

  parts: ({ asked, reply: { reading }, state }) => similarWork(state, reading, listOf(asked.many)),

  draw(store, shown, parts) {
    const refusal = refusalOf(store.state.many);
    const reading = shown?.reply.reading ?? store.reading?.reply;
    const { layer, head } = shown?.asked ?? store.state;
    return html`<div class="head-top">
        <div class="head-facts"><h2 id="view-title" tabindex="-1">Layer ${layer} · Head ${head} over many texts</h2>
          <p class="says">${shown ? progress(shown) : ''}</p></div>
        ${reading ? headPadOf(store, reading) : nothing}
      </div>
      <div @dragover=${(/** @type {DragEvent} */ event) => event.preventDefault()}
        @drop=${dropped((files) => opened(store, files))}>
      ${textField(store, {
        id: 'text-many',
        label: 'Texts, one a line; the built-in samples when empty',
        value: store.state.many,
        patch: (many) => ({ many }),
        lines: true,
      })}</div>
      <div class="controls"><label class="choice"><span>Open a file of texts</span>
        <input type="file" accept=".txt,text/plain" @change=${chosen((files) => opened(store, files))}></label></div>
      ${refusal ? html`<p class="problem" role="alert">${refusal}</p>` : nothing}
      ${otherTextProblem(store)}
      ${shown ? notes(shown.reply) : nothing}
      ${shown?.reply.results.length ? html`${best(store, shown)}${distributions(shown.reply)}${similarTokens(store, shown, parts)}` : nothing}`;
  },

  says: ({ asked, reply }, parts, state) =>
    `${reply.count} texts by layer ${asked.layer} head ${asked.head} shown.${similarSays(state, reply.reading, parts)}`,

  file({ state }, { asked, reply }, slots) {
    const { layer, head } = asked;
    const parts = Object.entries(histograms(reply.results)).map(([name, histogram], i) => ({
      ...HISTOGRAM,
      x: (i % ACROSS) * (HISTOGRAM.width + 24),
      y: Math.floor(i / ACROSS) * (HISTOGRAM.height + 48) + 20,
      title: captioned(reply.reading, name, histogram),
      draw: (/** @type {import('../draw/canvas-and-svg.js').Surface} */ surface) =>
        drawHistogram(surface, histogram),
    }));
    const rows = Math.ceil(parts.length / ACROSS);
    const similar = similarJson(state, reply.reading, slots);
    return {
      name: `layer ${layer} head ${head} over ${reply.results.length} texts`,
      texts: [],
      scene: { width: ACROSS * (HISTOGRAM.width + 24), height: rows * (HISTOGRAM.height + 48), parts },
      json: { texts: reply.results.map(({ text }) => text), layer, head, many: reply.results, ...similar },
    };
  },
};

/** @param {string} many */
function listOf(many) {
  const list = linesOf(many);
  return list.length ? list : SAMPLES;
}

/** Say how many texts the model does not see as they are. @param {Reply} reply */
function notes({ results, unknown }) {
  const cut = results.filter(({ truncated }) => truncated).length;
  const parts = [
    cut ? `${cut} of the texts ${cut === 1 ? 'is' : 'are'} cut.` : '',
    unknown ? `In ${unknown} of them over a tenth of the tokens are unknown to the model.` : '',
  ];
  return cut || unknown ? html`<p class="says text-note">${parts.join(' ')}</p>` : nothing;
}

/** @param {Shown} shown */
const progress = ({ reply: { results, count }, whole }) =>
  whole ? `${count} texts.` : `${results.length} of ${count} texts.`;

/**
 * Open a file; of a file that is too large, read only enough to refuse it.
 *
 * @param {Store} store
 * @param {FileList|null|undefined} files
 */
async function opened(store, files) {
  const text = await files?.[0]?.slice(0, BYTES_A_CHARACTER * (MOST_CHARACTERS + 1)).text();
  if (text !== undefined) store.go({ many: text });
}

const histograms = memo((/** @type {TextResult[]} */ results) =>
  Object.fromEntries(
    Object.keys(STATISTICS).map((name) => [
      name,
      histogramOf(results.map(({ statistics }) => statistics[name])),
    ]),
  ),
);

/** @param {Reply['reading']} reading @param {string} name @param {import('../draw/histogram.js').Histogram} histogram */
const captioned = ({ names }, name, histogram) => `${names.statistics[name].name}: ${ranged(histogram)}`;

/** @param {import('../draw/histogram.js').Histogram} histogram */
const ranged = ({ least, most, median }) => `${median.toFixed(3)} (${least.toFixed(3)}–${most.toFixed(3)})`;

/** @param {Reply} reply */
const distributions = ({
  reading,
  results,
}) => html`<h3>Its statistics: the median of all texts (least to most)</h3>
  <div class="histograms">${Object.entries(histograms(results)).map(
    ([
      name,
      histogram,
    ]) => html`<figure><figcaption>${definition(reading.names.statistics[name].name, STATISTICS[name].says)}: ${ranged(histogram)}</figcaption>
      <canvas aria-hidden="true" ${painted(drawOn, histogram, theme())}></canvas></figure>`,
  )}</div>`;

/** @param {HTMLCanvasElement} canvas @param {import('../draw/histogram.js').Histogram} histogram */
function drawOn(canvas, histogram) {
  const { width, height } = HISTOGRAM;
  canvas.width = 2 * width;
  canvas.height = 2 * height;
  const context = contextOf(canvas);
  context.scale(2, 2);
  drawHistogram(new CanvasSurface(context), histogram);
}

/** Table of the texts that show the head best. @param {Store} store @param {Shown} shown */
function best(store, { asked, reply }) {
  const { best: by } = store.state;
  const options = [
    { value: LINK, label: 'Strongest link' },
    ...Object.entries(reply.reading.names.statistics).map(([value, { name }]) => ({ value, label: name })),
  ];
  const worth = (/** @type {TextResult} */ { statistics, link }) =>
    by === LINK ? (link?.weight ?? 0) : statistics[by];
  const results = /** @type {TextResult[]} */ (reply.results);
  const ranked = [...results].sort((one, other) => worth(other) - worth(one)).slice(0, ROWS);
  const most = Math.max(...results.map(worth), 1e-9);
  const addressOf = (/** @type {string} */ text) =>
    write({ ...store.state, ...OF_ONE_TEXT, a: text, b: null, view: 'head', ...placed(asked) });
  return html`<h3>The texts that show it best</h3>
    <p class="says">Marked are the two tokens of the strongest link: <span class="linked from">the token that attends</span> and
      <span class="linked to">the token that it attends to</span>.</p>
    <div class="controls">${choice('By', options, by, (value) => store.go({ best: value }))}</div>
    <table class="links many"><thead><tr><th scope="col">text</th><th scope="col">strongest link</th>
      <th scope="col" class="number">${by === LINK ? 'weight' : options.find(({ value }) => value === by)?.label}</th></tr></thead>
    <tbody>${ranked.map(
      (one) => html`<tr><td><a href=${addressOf(one.text)}>${linked(one)}</a></td>
        <td>${one.link ? html`${bdi(one.link.from)} → ${bdi(one.link.to)}${by === LINK ? '' : ` ${one.link.weight.toFixed(3)}`}` : '–'}</td>
        <td class="number"><span class="meter" .style=${share(worth(one) / most)}></span>${worth(one).toFixed(4)}</td></tr>`,
    )}</tbody></table>`;
}

/** Text with both ends of its strongest link marked. @param {TextResult} result */
function linked({ text, link }) {
  if (!link) return bdi(text);
  const [from, to] = link.spans;
  const isSame = from.join() === to.join();
  const ends = [
    { span: from, name: 'from' },
    { span: to, name: 'to' },
  ];
  return linkedText(text, isSame ? [{ span: from, name: 'from to' }] : ends);
}

/** @param {{layer: number, head: number}} asked */
const placed = ({ layer, head }) => ({ layer, head });
