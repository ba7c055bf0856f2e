/**
 * Drawings of rankings: scores as bars, and the ranks of two rankings as a bump chart.
 *
 * @typedef {{rank: number, label: string, score: number, note: string}} RankedRow
 * @typedef {{name: string, label: string, ranks: number[]}[]} Bumps rows with their ranks in two rankings
 */

import { fixed } from '../core/numbers.js';
import { scaleOf } from '../core/ranking-metrics.js';
import { fit } from './canvas-and-svg.js';

const ROW = 26;
const HEAD = 28;
const LABEL = 360;
const BAR = 260;
const NOTES = 200;
const RANK = 34;

/**
 * Return the scene of ranked rows with bars on one scale.
 *
 * @param {RankedRow[]} rows the best first
 * @returns {import('./scene.js').Scene}
 */
export function rankingScene(rows) {
  const { low, zero, high } = scaleOf(rows.map(({ score }) => score));
  const width = high - low || 1;
  return {
    width: RANK + LABEL + BAR + NOTES,
    height: rows.length * ROW,
    draw: (surface, colours) =>
      rows.forEach(({ rank, label, score, note }, i) => {
        const y = i * ROW + ROW / 2;
        surface.text(String(rank), RANK - 12, y, { align: 'right', colour: colours.soft });
        surface.text(fit(label, LABEL - 16), RANK, y, { colour: colours.ink });
        const at = (/** @type {number} */ value) => RANK + LABEL + ((value - low) / width) * (BAR - 20);
        const [start, end] = [at(Math.min(zero, score)), at(Math.max(zero, score))];
        surface.rect(start, y - 6, Math.max(1, end - start), 12, score < zero ? colours.mark : colours.line);
        surface.text(`${fixed(score, 4)}${note ? `  ${note}` : ''}`, RANK + LABEL + BAR, y, {
          colour: colours.ink,
        });
      }),
  };
}

/** @param {Bumps} rows */
export const bumpHeight = (rows) => HEAD + rows.length * ROW;

/**
 * Draw a line for each row from its rank on the left to its rank on the right.
 *
 * @param {import('./canvas-and-svg.js').Surface} surface
 * @param {import('./colours.js').Theme} colours
 * @param {Bumps} rows
 * @param {string[]} names of both rankings
 * @param {number} width
 */
export function drawBumps(surface, colours, rows, names, width) {
  const side = width * 0.36;
  const y = (/** @type {number} */ rank) => HEAD + (rank - 0.5) * ROW;
  const align = /** @type {const} */ (['right', 'left']);
  const ends = [side, width - side];
  names.forEach((name, i) => {
    surface.text(fit(name, side, 12), i ? width - side : side, HEAD / 2, {
      size: 12,
      bold: true,
      align: align[i],
      colour: colours.soft,
    });
  });
  for (const { label, ranks } of rows) {
    const moved = ranks[1] - ranks[0];
    const colour = moved === 0 ? colours.soft : moved < 0 ? colours.line : colours.mark;
    surface.curve(ends[0] + 6, y(ranks[0]), ends[1] - 6, y(ranks[1]), {
      colour,
      alpha: 1,
      width: moved === 0 ? 1.5 : 2.5,
    });
    ranks.forEach((rank, i) => {
      const text = i ? `${rank}  ${fit(label, side - 34, 12)}` : `${fit(label, side - 34, 12)}  ${rank}`;
      surface.text(text, ends[i], y(rank), { size: 12, align: align[i], colour: colours.ink });
    });
  }
}

/** @param {Bumps} rows @param {string[]} names @returns {import('./scene.js').Scene} */
export const bumpScene = (rows, names) => ({
  width: RANK + LABEL + BAR + NOTES,
  height: bumpHeight(rows),
  draw: (surface, colours) => drawBumps(surface, colours, rows, names, RANK + LABEL + BAR + NOTES),
});
