/**
 * A reader of CSV: RFC 4180 with any of three separators, quotes, newlines inside of quotes, any line ends and
 * a byte order mark.
 *
 * @typedef {{line: number, fields: string[]}} Row `line` is the number of the line that the row begins on
 */

const SEPARATORS = [',', ';', '\t'];
const BYTE_ORDER_MARK = /^\uFEFF/;

/** An error of a file, whose message names the line. */
export class FileError extends Error {
  /** @param {number} line @param {string} says */
  constructor(line, says) {
    super(`Line ${line}: ${says}`);
    this.line = line;
  }
}

/** @param {string} content */
export const withoutMark = (content) => content.replace(BYTE_ORDER_MARK, '');

/**
 * Split a file into its rows; lines that are empty are left out.
 *
 * @param {string} content
 * @returns {Row[]}
 */
export function parseCsv(content) {
  const text = withoutMark(content);
  const separator = separatorOf(text);
  /** @type {Row[]} */
  const rows = [];
  let [place, line] = [0, 1];
  while (place < text.length) {
    const row = rowAt(text, place, line, separator);
    if (row.fields.length > 1 || row.fields[0] !== '') rows.push({ line, fields: row.fields });
    place = row.end;
    line += row.lines;
  }
  return rows;
}

/** Return the separator that the first line has most often outside of quotes. @param {string} text */
function separatorOf(text) {
  const counts = new Map(SEPARATORS.map((one) => [one, 0]));
  let quoted = false;
  for (const character of text) {
    if (character === '"') quoted = !quoted;
    else if (!quoted && /[\r\n]/.test(character)) break;
    else if (!quoted && counts.has(character)) counts.set(character, (counts.get(character) ?? 0) + 1);
  }
  return SEPARATORS.reduce((best, one) => ((counts.get(one) ?? 0) > (counts.get(best) ?? 0) ? one : best));
}

/**
 * Read one row.
 *
 * @param {string} text
 * @param {number} start
 * @param {number} line
 * @param {string} separator
 */
function rowAt(text, start, line, separator) {
  /** @type {string[]} */
  const fields = [];
  let [place, lines] = [start, 0];
  for (;;) {
    const field = text[place] === '"' ? quotedAt(text, place, line + lines) : plainAt(text, place, separator);
    fields.push(field.value);
    place = field.end;
    lines += field.lines;
    if (text[place] === separator) {
      place += 1;
      continue;
    }
    const end = /^(\r\n|\r|\n)?/.exec(text.slice(place, place + 2))?.[0].length ?? 0;
    if (end === 0 && place < text.length)
      throw new FileError(
        line + lines,
        'there is text after a closing quote. Write a quote inside of quotes twice.',
      );
    return { fields, end: place + end, lines: lines + 1 };
  }
}

/** @param {string} text @param {number} start @param {string} separator */
function plainAt(text, start, separator) {
  let end = start;
  while (end < text.length && text[end] !== separator && text[end] !== '\n' && text[end] !== '\r') end += 1;
  return { value: text.slice(start, end), end, lines: 0 };
}

/** @param {string} text @param {number} start of the opening quote @param {number} line */
function quotedAt(text, start, line) {
  let place = start + 1;
  for (;;) {
    const quote = text.indexOf('"', place);
    if (quote < 0) throw new FileError(line, 'a quote is opened and never closed.');
    place = quote + 1;
    if (text[place] === '"') {
      place += 1;
      continue;
    }
    const written = text.slice(start + 1, quote);
    const lines = written.match(/\r\n|\r|\n/g)?.length ?? 0;
    return { value: written.replaceAll('""', '"'), end: place, lines };
  }
}

/**
 * Write rows as CSV: with commas, `\r\n`, and quotes where a field needs them.
 *
 * @param {(string|number|null)[][]} rows
 */
export const toCsv = (rows) =>
  rows.map((row) => `${row.map((value) => fieldOf(String(value ?? ''))).join(',')}\r\n`).join('');

/**
 * Write objects with the same keys as CSV, with a first line of their keys.
 *
 * @param {Object<string, any>[]} rows at least one
 */
export function tableOf(rows) {
  const columns = Object.keys(rows[0]);
  return toCsv([columns, ...rows.map((row) => columns.map((column) => row[column]))]);
}

/** @param {string} value */
const fieldOf = (value) => (/[",\r\n]|^\s|\s$/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
