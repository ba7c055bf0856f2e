/** Quality of the ranking by the marks of a list. */

import { html, nothing } from '../../core/html.js';
import { fixed } from '../../core/numbers.js';
import { definition } from '../definition.js';
import { ndcg, orderOf, recall } from '../../core/ranking-metrics.js';

const CUTS = [1, 3, 10];
const NDCG =
  'Normalised discounted cumulative gain of all results: each mark is divided by log2(rank + 1), and their sum by that of the best order. 1 is best.';
const RECALL = 'Share of the relevant results (marked above 0) that are among the first ones.';

/**
 * @typedef {{name: string, order: number[]}} Order
 * @param {import('../../core/result-list.js').Result[]} results
 * @param {number[]} scores
 * @param {import('../../api/ranking.js').Ranked|null} rival
 */
export function quality(results, scores, rival) {
  if (results.every(({ relevance }) => relevance === null)) return nothing;
  const cuts = CUTS.filter((cut) => cut < results.length);
  const orders = [
    { name: 'this ranking', order: orderOf(scores) },
    { name: 'order of the list', order: listOrder(results) },
    ...(rival ? [{ name: rival.model, order: orderOf(rival.scores) }] : []),
  ];
  return html`<table class="quality"><caption>Quality by the marks</caption><thead><tr><th scope="col">ranking</th>
      <th scope="col" class="number">${definition('nDCG', NDCG)}</th>${cuts.map((cut) => html`<th scope="col" class="number">${definition(`recall at ${cut}`, RECALL)}</th>`)}</tr></thead>
    <tbody>${orders.map(({ name, order }) =>
      row(
        name,
        order.map((number) => results[number].relevance ?? 0),
        cuts,
      ),
    )}</tbody></table>`;
}

/** Return the results in the order of the list: by its ranks, then by their places. @param {import('../../core/result-list.js').Result[]} results */
export const listOrder = (results) =>
  [...results.keys()].sort((a, b) => (results[a].rank ?? Infinity) - (results[b].rank ?? Infinity) || a - b);

/** @param {string} name @param {number[]} gains @param {number[]} cuts */
function row(name, gains, cuts) {
  const values = [ndcg(gains), ...cuts.map((cut) => recall(gains, cut))];
  return html`<tr><th scope="row">${name}</th>${values.map((value) => html`<td class="number">${value === null ? '–' : fixed(value, 4)}</td>`)}</tr>`;
}
