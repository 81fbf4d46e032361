// What pages do beyond HTML. Every page works without it; texts reach the page as text, never as HTML.
import { start as startLive } from "./live.js";
import { start as startCharts } from "./charts.js";
import { start as startTimes } from "./times.js";
import { start as startKeys } from "./keys.js";
import { start as startForms } from "./forms.js";
import { start as startSuggestions } from "./suggest.js";

startTimes();
startCharts();
startKeys();
startForms();
startSuggestions();
startLive();
