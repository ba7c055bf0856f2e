/**
 * Results of a search, read from lines, CSV or JSONL.
 *
 * @typedef {Object} Result
 * @property {string} text
 * @property {string} title empty without one
 * @property {string} id empty without one
 * @property {number|null} relevance the mark of a person; null without one
 * @property {number|null} rank that the list gives; null without one
 * @typedef {{format: 'lines'|'CSV'|'JSONL', results: Result[], ignored: string[]}} ResultList `ignored`: names of
 *   columns that are not read
 */

import { FileError, parseCsv, withoutMark } from './csv.js';

export const MOST_RESULTS = 50;
/** Names that columns and keys may have. */
const NAMES = {
  text: ['text', 'document', 'passage', 'content'],
  title: ['title'],
  id: ['id', 'doc_id', 'docid'],
  relevance: ['relevance', 'label', 'grade'],
  rank: ['rank'],
};

/** @typedef {keyof typeof NAMES} Column */

/** Return the text that is ranked: title and text, as in BEIR. @param {Result} result */
export const documentOf = ({ title, text }) => (title ? `${title} ${text}` : text);

/**
 * @param {string} content
 * @param {'CSV'|'JSONL'|null} [expected] format that the name of a file promises
 * @returns {ResultList}
 */
export function readResults(content, expected = null) {
  const text = withoutMark(content);
  const found = /^\s*\{\s*["}]/.test(text) ? 'JSONL' : null;
  const format = expected ?? found ?? (hasHeader(text) ? 'CSV' : 'lines');
  const list = format === 'JSONL' ? ofJsonl(text) : format === 'CSV' ? ofCsv(text) : ofLines(text);
  if (list.results.length > MOST_RESULTS)
    throw new Error(
      `There are ${list.results.length} results, and at most ${MOST_RESULTS} are ranked: leave some out.`,
    );
  return { format, ...list };
}

/** Whether the first line names a column of texts. @param {string} text */
function hasHeader(text) {
  const [first] = text.split(/[\r\n]/, 1);
  try {
    const [header] = parseCsv(first);
    return header?.fields.some((name) => columnOf(name) === 'text') ?? false;
  } catch {
    return false;
  }
}

/** @param {string} name @returns {Column|undefined} */
const columnOf = (name) =>
  /** @type {Column[]} */ (Object.keys(NAMES)).find((column) =>
    NAMES[column].includes(name.trim().toLowerCase()),
  );

/** @param {string} text */
const ofLines = (text) => ({
  results: text
    .split(/\r\n|\r|\n/)
    .map((line) => line.trim())
    .filter(Boolean)
    .map((line) => resultOf(0, { text: line })),
  ignored: [],
});

/** @param {string} text */
function ofCsv(text) {
  const [header, ...rows] = parseCsv(text);
  const names = header?.fields ?? [];
  const columns = names.map(columnOf);
  if (!columns.includes('text'))
    throw new FileError(
      1,
      `no column is named ${NAMES.text.join(', ')}. Name the columns in the first line.`,
    );
  const twice = columns.find((column, i) => column && columns.indexOf(column) !== i);
  if (twice) throw new FileError(header.line, `two columns give the ${twice}. Leave one out.`);
  const results = rows.map(({ line, fields }) => {
    if (fields.length !== names.length)
      throw new FileError(
        line,
        `it has ${counted(fields.length)}, and the first line ${counted(names.length)}.`,
      );
    /** @type {Partial<Record<Column, unknown>>} */
    const given = {};
    columns.forEach((column, i) => {
      if (column) given[column] = fields[i];
    });
    return resultOf(line, given);
  });
  return { results, ignored: names.filter((_, i) => !columns[i]) };
}

/** @param {number} count */
const counted = (count) => `${count} ${count === 1 ? 'column' : 'columns'}`;

/** @param {string} text */
function ofJsonl(text) {
  const ignored = new Set();
  const results = text.split(/\r\n|\r|\n/).flatMap((line, i) => {
    if (!line.trim()) return [];
    /** @type {Partial<Record<Column, unknown>>} */
    const given = {};
    for (const [name, value] of Object.entries(objectOf(line, i + 1))) {
      const column = columnOf(name);
      if (!column) ignored.add(name);
      else if (column in given) throw new FileError(i + 1, `two keys give the ${column}. Leave one out.`);
      else given[column] = value;
    }
    return [resultOf(i + 1, given)];
  });
  return { results, ignored: [...ignored] };
}

/** @param {string} text @param {number} line @returns {Object<string, unknown>} */
function objectOf(text, line) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new FileError(line, 'it is not JSON. Write one object a line.');
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value))
    throw new FileError(line, 'it is not a JSON object. Write one object a line.');
  return value;
}

/**
 * @param {number} line
 * @param {Partial<Record<Column, unknown>>} given
 * @returns {Result}
 */
function resultOf(line, { text, title = '', id = '', relevance = null, rank = null }) {
  if (typeof text !== 'string' || !text.trim())
    throw new FileError(line, `the text is ${text ? 'not a string' : 'missing'}.`);
  if (typeof (title ?? '') !== 'string') throw new FileError(line, 'the title is not a string.');
  return {
    text: text.trim(),
    title: String(title ?? '').trim(),
    id: String(id ?? '').trim(),
    relevance: numberOf(line, 'relevance', relevance, (value) => value >= 0, 'a number from 0 on'),
    rank: numberOf(
      line,
      'rank',
      rank,
      (value) => Number.isInteger(value) && value > 0,
      'a whole number from 1 on',
    ),
  };
}

/**
 * @param {number} line
 * @param {string} name
 * @param {unknown} value
 * @param {(value: number) => boolean} isValid
 * @param {string} wanted
 */
function numberOf(line, name, value, isValid, wanted) {
  if (value === null || (typeof value === 'string' && !value.trim())) return null;
  const number = typeof value === 'boolean' ? Number(value) : Number(value);
  if (!Number.isFinite(number) || !isValid(number))
    throw new FileError(line, `its ${name} is not ${wanted}.`);
  return number;
}
