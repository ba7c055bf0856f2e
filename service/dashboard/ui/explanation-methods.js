/** The methods of an explanation, of texts as of pictures: their shares, and how far each can be relied on. */

import { errorOf, isPending } from '../core/answers.js';
import { spearman } from '../core/correlation.js';
import { html } from '../core/html.js';
import { fixed } from '../core/numbers.js';
import { segments } from './controls.js';
import { waitOf } from './explanation-tables.js';
import { worded } from './problems.js';

/** Number of tokens of both texts from which on sentences come first, and words of the strongest. */
const LONG = 300;

/**
 * @typedef {import('./store.js').Store} Store
 * @typedef {import('./view-slot.js').Parts} Parts
 * @typedef {import('../core/state.js').State['why']} MethodName
 * @typedef {Record<MethodName, {name: string, says: string}>} Methods
 * @typedef {import('../api/explanation.js').Explanation} Explanation
 * @typedef {import('../api/explanation.js').Shares} Shares
 */

/** @param {Record<MethodName, unknown>} methods */
export const namesOf = (methods) => /** @type {MethodName[]} */ (Object.keys(methods));

/** Whether a side is a picture. @param {Explanation} reply */
const isOfPictures = ({ texts }) => texts.some(({ view }) => view);

/** Whether sentences are left out before words. @param {Explanation} reply */
export const isLong = (reply) =>
  !isOfPictures(reply) && reply.texts[0].tokens.length + reply.texts[1].tokens.length > LONG;

/** Return what a part has answered, or null. @param {Parts} parts @param {string} name */
export function doneOf(parts, name) {
  const answer = parts[name]?.answer;
  return answer && 'reply' in answer ? answer.reply : null;
}

/** Whether all of these parts have been answered, or have failed. @param {Parts} parts @param {string[]} names */
export const areDone = (parts, names) =>
  names.every((name) => parts[name]?.answer && !isPending(parts[name].answer));

/** Return the name of the part that has a method's shares. @param {Explanation} reply @param {MethodName} method */
const partOf = (reply, method) => (method === 'occlusion' && isLong(reply) ? 'sentences' : method);

/** Return the shares of each method as far as they have come. @param {Explanation} reply @param {Parts} parts @returns {Record<MethodName, Shares|null>} */
export const sharesOf = (reply, parts) => ({
  occlusion: doneOf(parts, partOf(reply, 'occlusion')),
  pairs: reply.pairs,
  decomposition: doneOf(parts, 'decomposition'),
});

/** @param {MethodName} method @param {Explanation} reply @param {Parts} parts */
const hasFailed = (method, reply, parts) =>
  method === 'pairs' ? !reply.pairs : Boolean(errorOf(parts[partOf(reply, method)]?.answer ?? null));

/**
 * Return the chosen method or, if it has failed, the first one that has come.
 *
 * @param {{why: MethodName}} state
 * @param {Explanation} reply
 * @param {Parts} parts
 */
export function methodOf({ why }, reply, parts) {
  const known = sharesOf(reply, parts);
  return hasFailed(why, reply, parts) ? (namesOf(known).find((name) => known[name]) ?? why) : why;
}

/** Switch between the methods, with what the chosen one computes. @param {Store} store @param {Methods} methods @param {Explanation} reply @param {Parts} parts */
export function methodSwitch(store, methods, reply, parts) {
  const method = methodOf(store.state, reply, parts);
  const { occlusion, pairs, decomposition } = methods;
  const names = { occlusion: occlusion.name, pairs: pairs.name, decomposition: decomposition.name };
  const isOff = (/** @type {MethodName} */ name) => hasFailed(name, reply, parts);
  return html`${segments('Method', names, method, (why) => store.go({ why }), isOff)}
    <p class="says">${methods[method].says}</p>`;
}

/**
 * Return the similarity in large digits, and what it is.
 *
 * @param {Store} store
 * @param {Explanation} reply
 */
export const similarityOf = ({ state }, { similarity, matches }) =>
  html`<p class="why-similarity"><span class="figure">${fixed(similarity, 4)}</span> ${matches ? 'similarity, the sum of what matches' : 'cosine of the two vectors'}${state.off.length ? ', with every head switched on' : ''}</p>`;

/**
 * Table of the methods: how far each can be relied on, and its time.
 *
 * @param {Methods} methods
 * @param {Explanation} reply
 * @param {Parts} parts
 */
export function reliability(methods, reply, parts) {
  const known = sharesOf(reply, parts);
  const reference = isLong(reply) ? null : known.occlusion;
  const row = (/** @type {MethodName} */ method) => {
    const shares = known[method];
    const head = html`<th scope="row">${methods[method].name}</th>`;
    const refusal = method === 'pairs' ? reply.refusal : '';
    const part = partOf(reply, method);
    if (!shares)
      return html`<tr>${head}<td colspan="4">${refusal ? worded(refusal) : waitOf(reply, parts, part)}</td></tr>`;
    const sum = shares.worth[0].reduce((total, value) => total + value, 0);
    const agreement = reference && spearman(likeIn(shares, reference), flat(reference));
    const seconds = method === 'pairs' ? reply.seconds : (parts[part]?.seconds ?? null);
    return html`<tr>${head}<td class="number">${shares.pairs ? fixed(sum, 4) : '–'}</td>
      <td class="number">${shares.error === null ? '–' : shares.error.toExponential(0)}</td>
      <td class="number">${shares === reference ? 'reference' : agreement === null ? '–' : fixed(agreement, 2)}</td>
      <td class="number">${seconds === null ? '–' : `${seconds.toFixed(1)} s`}</td></tr>`;
  };
  const names = ['sums to', 'error', 'agrees with removal', 'time'];
  const [each, all] = isOfPictures(reply) ? ['word and square', 'parts'] : ['token', 'tokens'];
  const isPartial = all === 'tokens' && reference?.worth.some((side) => side.some(Number.isNaN));
  return html`<table><thead><tr><th scope="col">Method</th>${names.map((name) => html`<th scope="col" class="number">${name}</th>`)}</tr></thead>
    <tbody>${namesOf(methods).map(row)}</tbody></table>
    <p class="says">Shares should sum to ${fixed(reply.similarity, 4)}. Agreement is Spearman’s correlation with the losses
      without each ${each}; near 0, shares do not tell which ${all} the model needs, however well they sum.${isPartial ? ' Tokens with – were not removed: the deadline came first.' : ''}</p>`;
}

/** Return the values of both sides. @param {Shares} shares */
const flat = ({ worth }) => worth.flatMap((side) => [...side]);

/** Return shares summed over the words and squares that another method removes, if it does. @param {Shares} shares @param {Shares} reference */
const likeIn = (shares, { spans }) =>
  spans && !shares.spans
    ? spans.flatMap((side, i) =>
        side.map(({ tokens }) => tokens.reduce((sum, token) => sum + shares.worth[i][token], 0)),
      )
    : flat(shares);
