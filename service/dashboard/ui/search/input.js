/** Fields of the search: query, results, file, prompts, other model. */

import { othersOf } from '../../api/service-info.js';
import { MARKED_RESULTS } from '../../core/example-results.js';
import { html, live, nothing } from '../../core/html.js';
import { MOST_RESULTS, readResults } from '../../core/result-list.js';
import { choice } from '../controls.js';
import { chosen, dropped } from '../open-file.js';
import { textField } from '../text-field.js';
import { OF_ONE_LIST, readOf, resultsText, withResults } from './questions.js';

/** Maximum bytes of a file that is opened. */
const MOST_BYTES = 4_000_000;
const OWN = 'own';

/** @typedef {import('../store.js').Store} Store */

/** Error of the file that was opened last; it goes with the next change of the results. */
let fileError = /** @type {{text: string, results: string|null}|null} */ (null);

/** @param {Store} store @param {import('../../api/ranking.js').Ranked|null} ranked */
export function searchInput(store, ranked) {
  const { state } = store;
  const { list, refusal } = readOf(state);
  const text = resultsText(state);
  const problem = fileError && fileError.results === text ? fileError.text : refusal;
  return html`<div class="search-input" @dragover=${(/** @type {DragEvent} */ event) => event.preventDefault()}
      @drop=${dropped((files) => opened(store, files))}>
      ${textField(store, { id: 'text-q', label: 'Query', value: state.q, patch: (q) => ({ q, gone: '' }) })}
      ${textField(store, {
        id: 'text-results',
        label: `Results, at most ${MOST_RESULTS}: one a line, or CSV or JSONL with a column “text”`,
        value: text ?? '',
        patch: (results) => withResults(results),
        lines: true,
      })}</div>
    <div class="controls search-options"><label class="choice"><span>Open a file</span>
        <input type="file" accept=".txt,.csv,.tsv,.jsonl,.ndjson,text/plain,text/csv" @change=${chosen((files) => opened(store, files))}></label>
      <button type="button" class="quiet" @click=${() => store.go(withResults(MARKED_RESULTS))}>Example with marks</button>
      <label class="switch"><input type="checkbox" .checked=${live(state.cut)}
        @change=${(/** @type {{target: HTMLInputElement}} */ { target }) => store.go({ cut: target.checked })}> Cut long texts</label>
      ${prompts(store, ranked)}${otherModel(store)}</div>
    ${problem ? html`<p class="problem" role="alert">${problem}</p>` : list ? html`<p class="says">${described(list, state.q)}${state.stored ? HELD : ''}</p>` : nothing}`;
}

const HELD =
  ' They are too long for the address of this page: the link opens them only in this tab. Keep the file for others.';

/** Describe a list, and what is missing to rank it. @param {import('../../core/result-list.js').ResultList} list @param {string} query */
function described({ format, results, ignored }, query) {
  if (!results.length) return 'No results: type or paste some, or open a file.';
  const count = `${results.length} ${results.length === 1 ? 'result' : 'results'}`;
  const from = format === 'lines' ? 'one a line' : `read as ${format}`;
  const titles = results.some(({ title }) => title) ? '; title and text are ranked together' : '';
  const left = ignored.length ? `; not used: ${ignored.join(', ')}` : '';
  return `${count}, ${from}${titles}${left}.${query.trim() ? '' : ' Enter a query to rank them.'}`;
}

/** Prompts of both sides, where the model has some. @param {Store} store @param {import('../../api/ranking.js').Ranked|null} ranked */
function prompts(store, ranked) {
  const names = /** @type {string[]} */ (store.info?.prompts ?? []);
  if (!names.length) return nothing;
  const { state } = store;
  const side = (
    /** @type {'qprompt'|'dprompt'} */ field,
    /** @type {string} */ label,
    /** @type {import('../../api/ranking.js').Prompt} */ used,
  ) => {
    const options = [
      { value: OWN, label: 'the model’s own' },
      { value: '', label: 'none' },
      ...names.map((name) => ({ value: `=${name}`, label: name })),
    ];
    const value = state[field] === null ? OWN : state[field] === '' ? '' : `=${state[field]}`;
    const choose = (/** @type {string} */ name) =>
      store.go({ [field]: name === OWN ? null : name.slice(1), gone: '' });
    return html`${choice(label, options, value, choose)}${used && used.text !== '' ? html`<span class="fact">“${used.text ?? used.name}”</span>` : nothing}`;
  };
  const missing = ranked?.warnings.prompt_missing;
  return html`${side('qprompt', 'Prompt of the query', ranked?.prompts.query ?? null)}
    ${side('dprompt', 'Prompt of the results', ranked?.prompts.document ?? null)}
    ${missing ? html`<p class="badge">${missing} texts have no prompt, though the model was trained with prompts: choose them here.</p>` : nothing}`;
}

/** @param {Store} store */
function otherModel(store) {
  const others = othersOf(store.info);
  if (!others.length) return nothing;
  const options = [{ value: '', label: 'none' }, ...others.map((name) => ({ value: name, label: name }))];
  return choice('Compare with model', options, store.state.versus, (versus) => store.go({ versus }));
}

/**
 * Open a file of results, if it can be read as its name says.
 *
 * @param {Store} store
 * @param {FileList|null|undefined} files
 */
async function opened(store, files) {
  const file = files?.[0];
  if (!file) return;
  const before = resultsText(store.state);
  const refuse = (/** @type {string} */ text) => {
    fileError = { text, results: before };
    store.redraw();
  };
  if (file.size > MOST_BYTES)
    return refuse(`The file has ${file.size} bytes, and at most ${MOST_BYTES} are opened.`);
  try {
    const content = new TextDecoder('utf-8', { fatal: true }).decode(await file.arrayBuffer());
    readResults(content, expectedOf(file.name));
    fileError = null;
    store.go({ ...OF_ONE_LIST, ...withResults(content) });
  } catch (error) {
    const says =
      error instanceof TypeError
        ? 'it is not UTF-8.'
        : error instanceof Error
          ? error.message
          : String(error);
    refuse(`${file.name} cannot be read: ${says}`);
  }
}

/** @param {string} name of a file @returns {'CSV'|'JSONL'|null} */
const expectedOf = (name) =>
  /\.(csv|tsv)$/i.test(name) ? 'CSV' : /\.(jsonl|ndjson)$/i.test(name) ? 'JSONL' : null;
