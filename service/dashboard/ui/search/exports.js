/** Files of a ranking. */

import { tableOf } from '../../core/csv.js';
import { html } from '../../core/html.js';
import { memo } from '../../core/memo.js';
import { documentOf } from '../../core/result-list.js';
import { ndcg, orderOf, ranksOf } from '../../core/ranking-metrics.js';
import { bumpScene, rankingScene } from '../../draw/ranking-chart.js';
import { download } from '../save-buttons.js';

/**
 * @typedef {import('./list.js').Shown} Shown
 * @typedef {import('../../api/ranking.js').Ranked} Ranked
 */

/** Return one object a result, the best first. @param {Shown} shown @param {Ranked|null} rival */
export function rankedRows({ asked, reply }, rival) {
  const ranks = ranksOf(reply.scores);
  const others = rival && ranksOf(rival.scores);
  return orderOf(reply.scores).map((number) => {
    const { id, title, text, relevance, rank } = asked.results[number];
    return {
      rank: ranks[number],
      score: reply.scores[number],
      number: number + 1,
      list_rank: rank,
      relevance,
      id,
      title,
      text,
      ...(reply.parts[number] ?? {}),
      ...(rival && others
        ? { other_model: rival.model, other_rank: others[number], other_score: rival.scores[number] }
        : {}),
    };
  });
}

/** Rows of the bump chart; the same rankings give the same object. */
export const bumpsOf = memo(
  (/** @type {Shown['asked']} */ asked, /** @type {Ranked} */ reply, /** @type {Ranked} */ rival) => {
    const [ranks, others] = [ranksOf(reply.scores), ranksOf(rival.scores)];
    return orderOf(reply.scores).map((number) => {
      const { title, text } = asked.results[number];
      return { name: String(number), label: title || text, ranks: [ranks[number], others[number]] };
    });
  },
);

/** Return the names of two rankings. @param {Ranked} reply @param {Ranked} rival */
export const namesOf = (reply, rival) => [reply.model, rival.model];

/** @param {Shown} shown @param {Ranked|null} rival @returns {import('../view-slot.js').File} */
export function rankingFile(shown, rival) {
  const { asked, reply } = shown;
  const rows = rankedRows(shown, rival);
  const bars = rankingScene(
    rows.map(({ rank, score, title, text, relevance }) => ({
      rank,
      score,
      label: documentOf({ title, text, id: '', relevance: null, rank: null }),
      note: relevance === null ? '' : `relevance ${relevance}`,
    })),
  );
  const below = rival && bumpScene(bumpsOf(asked, reply, rival), namesOf(reply, rival));
  const scene = below
    ? {
        width: bars.width,
        height: bars.height + 40 + below.height,
        parts: [
          { ...bars, x: 0, y: 0 },
          { ...below, x: 0, y: bars.height + 40 },
        ],
      }
    : bars;
  const gains = rows.map(({ relevance }) => relevance ?? 0);
  return {
    name: 'ranking',
    scene,
    json: {
      query: asked.query,
      scoring: reply.scoring,
      prompts: reply.prompts,
      ndcg: ndcg(gains),
      results: rows,
    },
  };
}

/** Buttons that save the ranking as CSV and as JSONL. @param {Shown} shown @param {Ranked|null} rival */
export function tableButtons(shown, rival) {
  const save = (/** @type {string} */ kind) => {
    const rows = rankedRows(shown, rival);
    const content = kind === 'CSV' ? tableOf(rows) : rows.map((row) => `${JSON.stringify(row)}\n`).join('');
    const type = kind === 'CSV' ? 'text/csv' : 'application/jsonl';
    download(new Blob([content], { type }), `headscope-ranking.${kind.toLowerCase()}`);
  };
  return html`<div class="tables" role="group" aria-label="Save the ranking">${['CSV', 'JSONL'].map(
    (kind) =>
      html`<button type="button" class="quiet" ?disabled=${!shown.whole} @click=${() => save(kind)}>${kind}</button>`,
  )}</div>`;
}
